package kubectl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/client-go/tools/remotecommand"
)

// maxLine is the most that a line may have, with its end.
const maxLine = 64 << 10

// LostError says that a command's output has been lost, with its container or with the connection: it
// has not ended by itself.
type LostError struct{ err error }

// Error says what was lost.
func (e *LostError) Error() string { return e.err.Error() }

// Unwrap returns its cause.
func (e *LostError) Unwrap() error { return e.err }

// killed is the least exit code of a command that a signal has ended, as shells and container runtimes
// have it.
const killed = 128

// Follow runs a command in an agent's pod as [Cluster.Exec] does, and calls each with every line that
// it prints, the line's end included, as soon as it is printed. The line is valid until each returns.
// It ends with the command, with ctx, whose cause the error wraps, or with an error of each, which it
// returns. The error is a [*LostError] where the command has not ended by itself.
//
// A container runtime does not end a command whose caller has gone away, however that came about. So
// the command's standard input is open until then, and the command has to end when that does.
func (c *Cluster) Follow(ctx context.Context, agent Agent, each func(line []byte) error, command ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, in := io.Pipe()
	defer out.Close()
	go func() {
		in.CloseWithError(c.run(ctx, agent, remotecommand.StreamOptions{Stdin: openUntil{ctx}, Stdout: in}, command))
	}()
	for lines := bufio.NewReaderSize(out, maxLine); ; {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("exec in pod %s: it printed a line of more than %d KiB", agent.Pod, maxLine>>10)
		case err == io.EOF: // as it is when run has no error
			return nil
		case err != nil:
			var exit *ExitError
			if errors.As(err, &exit) && exit.Code < killed {
				return err
			}
			return &LostError{err}
		}
		if err := each(line); err != nil {
			return err
		}
	}
}

// openUntil is a standard input with nothing in it, which ends with a context.
type openUntil struct{ ctx context.Context }

// Read waits for the end.
func (o openUntil) Read([]byte) (int, error) {
	<-o.ctx.Done()
	return 0, io.EOF
}
