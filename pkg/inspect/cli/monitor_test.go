package cli_test

import (
	"bytes"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/wait"
)

// listening reports whether somebody listens to events.
func listening(maps *bpfmap.Maps) bool {
	return atomic.LoadUint64(&maps.Entries.Monitor.Listening) != 0
}

// TestMonitorUntilEOF: the command says that it listens, and ends when its standard input does.
func TestMonitorUntilEOF(t *testing.T) {
	bpffs, maps := pinned(t, nil)
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- cli.Run(t.Context(), cli.Env{In: in, Out: out, Err: &errs, Now: time.Now}, "--bpffs", bpffs, "monitor", "--until-eof")
		check(t, out.Close())
	}()
	first := make([]byte, 1)
	_, err := io.ReadFull(stdout, first)
	check(t, err)
	if !listening(maps) || first[0] != '\n' {
		t.Errorf("listens: %t, printed %q first", listening(maps), first)
	}
	_, err = io.WriteString(stdin, "what is written does not matter\n")
	check(t, err)
	check(t, stdin.Close())
	if rest, err := io.ReadAll(stdout); err != nil || len(rest) > 0 {
		t.Errorf("printed %q, %v", rest, err)
	}
	if got := <-code; got != cli.ExitOK || errs.Len() > 0 || listening(maps) {
		t.Errorf("exit code %d, said %q, listens: %t", got, &errs, listening(maps))
	}
}

// TestMonitorUnknownService: whoever asks for a Service that is not served is told so, and it is waited for.
func TestMonitorUnknownService(t *testing.T) {
	bpffs := newDatapath(t)
	for service, want := range map[string]string{
		"shop/web": "",
		"shop/wed": "beeline: no events yet: service shop/wed is not served on this node; did you mean shop/web?\n",
	} {
		var out, errs bytes.Buffer
		code := cli.Run(t.Context(), cli.Env{In: new(bytes.Buffer), Out: &out, Err: &errs, Now: time.Now},
			"--bpffs", bpffs, "monitor", "--until-eof", "--service", service)
		if code != cli.ExitOK || out.String() != "\n" || errs.String() != want {
			t.Errorf("%s: exit code %d, printed %q, said %q", service, code, &out, &errs)
		}
	}
}

// TestListenersLeave: commands that listen give their place back when their terminal is gone, and when nobody reads
// what they print.
func TestListenersLeave(t *testing.T) {
	bpffs, maps := pinned(t, fixture())
	for _, args := range [][]string{{"monitor", "--until-eof"}, {"top", "--count", "1000", "--interval", "100ms", "shop/web"}} {
		for _, end := range []string{"nobody reads", "the terminal is gone"} {
			var errs bytes.Buffer
			cmd := asCommand(append([]string{"--bpffs", bpffs}, args...)...)
			cmd.Stderr = &errs
			stdin, err := cmd.StdinPipe()
			check(t, err)
			out, stdout, err := os.Pipe()
			check(t, err)
			cmd.Stdout = stdout
			if end == "nobody reads" {
				check(t, out.Close())
			}
			check(t, cmd.Start())
			check(t, stdout.Close())
			if end == "the terminal is gone" {
				wait.Until(t, "the command listens", func() bool { return listening(maps) })
				check(t, cmd.Process.Signal(unix.SIGHUP))
				_, _ = io.Copy(io.Discard, out)
				check(t, out.Close())
			}
			err = cmd.Wait()
			_ = stdin.Close()
			if !cmd.ProcessState.Exited() || listening(maps) || errs.Len() > 0 {
				t.Errorf("%s, %s: %v, said %q, listens: %t", args[0], end, err, &errs, listening(maps))
			}
		}
	}
}
