// Command demo shows Beeline at work on this machine, without a cluster: a node
// and its pods in network namespaces, three web servers, and beeline-agent
// serving a copy of examples/. It checks every claim that it prints and exits
// with an error when one did not hold.
//
//	make demo
//
// What it makes is removed when it ends, however it ends: a process of its own,
// the sweeper, waits for that. What it mounts nobody else sees.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/interrupt"
	"github.com/beeline-lb/beeline/tests/mounts"
)

func main() {
	bin := flag.String("bin", "bin", "folder of beeline-agent and beeline")
	flag.Parse()
	if err := dispatch(*bin, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// dispatch plays the part that the first argument names; the demo starts itself anew
// for each of them.
func dispatch(bin string, args []string) error {
	switch {
	case len(args) == 0:
		if err := mounts.Private(); err != nil {
			return err
		}
		return demo(bin)
	case len(args) == 2 && args[0] == roleWebServer:
		return serveWeb(args[1])
	case len(args) == 2 && args[0] == roleLoad:
		return load(args[1])
	case len(args) == 2 && args[0] == roleSweeper:
		return sweepAfter(os.Stdin, &stage{name: args[1], bin: bin})
	}
	return fmt.Errorf("unknown arguments %q: it takes none", args)
}

// demo shows everything and leaves the machine as it was. A closed output ends it
// like Ctrl-C does.
func demo(bin string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), append(interrupt.Signals(), unix.SIGPIPE)...)
	defer stop()
	if bin, err = findBinaries(bin); err != nil {
		return err
	}
	screen := newScreen(os.Stdout)
	stage := newStage(bin)
	sweeper, err := startSweeper(stage)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sweeper.finish()) }()
	if err := stage.build(ctx); err != nil {
		return cause(ctx, err)
	}
	return cause(ctx, show(ctx, screen, stage))
}

// cause prefers the signal that ended the demo to the errors it led to.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// shown are the binaries that the demo shows.
var shown = []string{"beeline-agent", "beeline"}

// findBinaries returns the absolute path of the folder that holds what the demo
// shows.
func findBinaries(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for _, name := range shown {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("%s is not built: run make build, and the demo from the top of the checkout: %w", name, err)
		}
	}
	return dir, nil
}
