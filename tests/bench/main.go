// Command bench measures what Beeline promises of its speed and writes
// tests/bench/RESULTS.md with a plot. It needs root.
//
// Each benchmark runs in a process of its own, in network and mount namespaces
// of its own and below a cgroup of its own, so that nothing of it stays however
// it ends. Run it inside the repository:
//
//	go run ./tests/bench [-run NAME]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
)

// benchmark is a measurement that is made in a sandbox.
type benchmark struct {
	name string
	// runs is how often the whole is repeated, each time in a new process.
	runs int
	// run measures. What it starts must end with it or with its process.
	run func(context.Context, *sandbox) (samples, error)
}

var benchmarks = []benchmark{
	{"connect", 3, measureConnect},
	{"tcp", 3, measureTCP},
	{"memory", 1, measureMemory},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	var err error
	if name := os.Getenv(childEnv); name != "" {
		err = child(ctx, name)
	} else {
		err = command(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context) error {
	only := flag.String("run", "", "run one benchmark and print its figures: "+strings.Join(names(), ", "))
	flag.Parse()
	if *only != "" {
		b, err := find(*only)
		if err != nil {
			return err
		}
		all, err := b.repeat(ctx)
		if err != nil {
			return err
		}
		return printFigures(os.Stdout, judge(all))
	}
	all := make(results)
	for _, b := range benchmarks {
		r, err := b.repeat(ctx)
		if err != nil {
			return err
		}
		all.merge(r)
	}
	figures := judge(all)
	if err := writeReport(figures); err != nil {
		return err
	}
	return printFigures(os.Stdout, figures)
}

// repeat runs the benchmark as often as it wants.
func (b benchmark) repeat(ctx context.Context) (results, error) {
	all := make(results)
	for i := range b.runs {
		fmt.Fprintf(os.Stderr, "%s: run %d of %d\n", b.name, i+1, b.runs)
		s, err := isolate(ctx, b.name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
		all.add(s)
	}
	return all, nil
}

func find(name string) (benchmark, error) {
	for _, b := range benchmarks {
		if b.name == name {
			return b, nil
		}
	}
	return benchmark{}, fmt.Errorf("no benchmark %q: there are %s", name, strings.Join(names(), ", "))
}

func names() []string {
	var list []string
	for _, b := range benchmarks {
		list = append(list, b.name)
	}
	return list
}
