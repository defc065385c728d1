// Command stress runs the tests of each package many times in random order, in series beside
// loads of several sizes, none among them, and prints which failed how often.
//
//	go run ./tools/stress [-count 20] [-load 0,1.5] [-all] [packages]
//
// Each test binary is built once, and each run is a process of its own. As many packages run
// beside each other as there are processors, also without a load: no package is alone. The output of runs that
// failed, with the seed of their order, is kept in the folder that -output names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/beeline-lb/beeline/tests/interrupt"
	"github.com/beeline-lb/beeline/tests/tier"
)

// options are the command line.
type options struct {
	count    int
	loads    []float64 // processors that are kept busy, by series of runs
	run      string
	output   string
	timeout  time.Duration
	packages []string
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == burnArg {
		burn(os.Args[2])
	}
	o, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stress:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), interrupt.Signals()...)
	defer stop()
	if err := stress(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "stress:", err)
		os.Exit(1)
	}
}

func parseFlags() (options, error) {
	var o options
	var loads string
	var all bool
	flag.IntVar(&o.count, "count", 20, "runs of each package beside each load")
	flag.StringVar(&loads, "load", "0,1.5", "processors that other processes keep busy, one series of runs for each; 0 is none, but as many packages run beside each other as there are processors")
	flag.StringVar(&o.run, "run", "", "run only these tests, as -run of go test")
	flag.StringVar(&o.output, "output", "bin/stress", "folder for the output of runs that failed")
	flag.DurationVar(&o.timeout, "timeout", time.Hour, "time limit of one run")
	flag.BoolVar(&all, "all", false, "run also the tests that make test leaves out")
	flag.Parse()
	if all {
		os.Setenv(tier.AllEnv, "1")
	}
	for _, text := range strings.Split(loads, ",") {
		load, err := strconv.ParseFloat(text, 64)
		if err != nil || load < 0 {
			return o, fmt.Errorf("-load %s: want numbers of processors, as 0,1.5", loads)
		}
		o.loads = append(o.loads, load)
	}
	if o.packages = flag.Args(); len(o.packages) == 0 {
		o.packages = []string{"./..."}
	}
	return o, nil
}

// stress returns an error when a test has failed.
func stress(ctx context.Context, o options) error {
	scratch, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "beeline-stress-") // programs are run there
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	binaries, err := build(ctx, scratch, o.packages)
	if err != nil {
		return err
	}
	if o.output, err = filepath.Abs(o.output); err != nil {
		return err
	}
	if err := os.MkdirAll(o.output, 0o755); err != nil {
		return err
	}
	failed := 0
	for _, load := range o.loads {
		stop, err := startLoad(load)
		if err != nil {
			return err
		}
		all := newTally()
		err = series(ctx, os.Stdout, o, binaries, load, all)
		stop()
		failed += all.failed
		if err != nil {
			return errors.Join(err, failedRuns(failed))
		}
	}
	return failedRuns(failed)
}

func failedRuns(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d runs failed", n)
}

// series runs every package count times beside a load, as many at once as there are
// processors, as go test does. All packages have their turn, in random order, before any has
// its next. A series that the context ends early is an error.
func series(ctx context.Context, out io.Writer, o options, binaries []binary, load float64, all *tally) error {
	total := o.count * len(binaries)
	defer func() { all.print(out, load, total) }() // also of a series that is ended early
	start := time.Now()
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	var mu sync.Mutex // of what is printed and counted
	for i := range o.count {
		if running.Err() != nil {
			break
		}
		for _, n := range rand.Perm(len(binaries)) {
			b := &binaries[n]
			group.Go(func() error {
				r, err := b.run(running, o)
				if running.Err() != nil {
					return context.Cause(running)
				}
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(out, "load %g, run %d of %d: %s %s %.0fs, %.0fs of CPU, after %.0fs\n",
					load, i+1, o.count, r.verdict(), b.pkg, r.took.Seconds(), r.cpu.Seconds(), time.Since(start).Seconds())
				if !all.add(b.pkg, r) {
					return nil
				}
				name := fmt.Sprintf("%s-load%g-run%d.txt", strings.ReplaceAll(b.pkg, "/", "-"), load, i+1)
				return os.WriteFile(filepath.Join(o.output, name), r.output, 0o644)
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
