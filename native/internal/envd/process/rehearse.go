package process

import "context"

type rehearsalKey struct{}

// Rehearsing marks the context of a Start whose process is nobody's: it is not to be found when it has ended, and no log
// tells of it.
func Rehearsing(ctx context.Context) context.Context {
	return context.WithValue(ctx, rehearsalKey{}, true)
}

func isRehearsal(ctx context.Context) bool {
	return ctx.Value(rehearsalKey{}) != nil
}
