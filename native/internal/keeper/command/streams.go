package command

import (
	"fmt"
	"os"
	"slices"
)

// streams are the three standard files of a command and our ends of them.
type streams struct {
	given  [3]*os.File
	null   *os.File // shared, never closed here
	stdin  *os.File // nil without input
	stdout *output  // nil when output goes elsewhere
	stderr *output
}

func (r *Runner) openStreams(spec Spec) (_ *streams, err error) {
	s := &streams{null: r.null, given: [3]*os.File{r.null, r.null, r.null}}
	defer func() {
		if err != nil {
			s.closeGiven()
			s.abandon()
		}
	}()
	if len(spec.Stdin) > 0 {
		if s.given[0], s.stdin, err = pipe(1); err != nil {
			return s, err
		}
	}
	switch {
	case spec.DiscardOutput:
	case spec.LogFile != "":
		file, err := r.logs.Open(spec.LogFile, spec.LogLimitBytes)
		if err != nil {
			return s, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		s.given[1], s.given[2] = file, file
	default:
		if s.stdout, s.given[1], err = newOutput(); err != nil {
			return s, err
		}
		if s.stderr, s.given[2], err = newOutput(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// closeGiven closes our copies of the command's ends.
func (s *streams) closeGiven() {
	for i, file := range s.given {
		if file != nil && file != s.null && !slices.Contains(s.given[:i], file) {
			file.Close()
		}
	}
}

// abandon closes our ends when the command was never started.
func (s *streams) abandon() {
	if s.stdin != nil {
		s.stdin.Close()
	}
	for _, o := range []*output{s.stdout, s.stderr} {
		if o != nil {
			o.read.Close()
		}
	}
}

// pump feeds the input and collects the output in the background until finish.
func (s *streams) pump(stdin []byte) {
	if s.stdin != nil {
		go func() {
			defer s.stdin.Close()
			// A command may end, or close its input, without having read all of it.
			_, _ = s.stdin.Write(stdin)
		}()
	}
	for _, o := range []*output{s.stdout, s.stderr} {
		if o != nil {
			go o.collect()
		}
	}
}

// finish takes what the command has written. Preconditions: it has ended.
func (s *streams) finish(result *Result) {
	if s.stdin != nil {
		s.stdin.Close()
	}
	if s.stdout == nil {
		return
	}
	s.stdout.drain()
	s.stderr.drain()
	<-s.stdout.finished
	<-s.stderr.finished
	result.Stdout, result.Stderr = s.stdout.data, s.stderr.data
	result.Truncated = s.stdout.truncated || s.stderr.truncated
}
