package process

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/internal/envd/stream"
)

// pump sends a subscription's events until the end, the deadline or the client's departure.
func pump(ctx context.Context, sub *subscription, keepAlive time.Duration, expired <-chan struct{}, send func(*processpb.ProcessEvent) error) error {
	silence := time.NewTimer(keepAlive)
	defer silence.Stop()
	for {
		event, dropped := sub.take()
		if dropped {
			return connect.NewError(connect.CodeAborted, errors.New("the output was not read for too long; connect again to go on"))
		}
		if event != nil {
			ended := event.GetEnd() != nil
			if ended && isClosed(expired) {
				return errExpired()
			}
			if ended {
				stream.Last(ctx)
			}
			if err := send(event); err != nil || ended {
				return err
			}
			silence.Reset(keepAlive)
			continue
		}
		select {
		case <-sub.ready:
		case <-sub.gone:
		case <-silence.C:
			if err := send(keepAliveEvent()); err != nil {
				return err
			}
			silence.Reset(keepAlive)
		case <-expired:
			return errExpired()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func errExpired() error {
	return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the deadline of the request has passed"))
}

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}
