// Command bench measures what Beeline promises of its speed and writes
// tests/bench/RESULTS.md with a plot. It needs root.
//
// Each benchmark runs in a process of its own, in namespaces of its own and below
// a cgroup of its own, so that nothing of it stays however it ends. Run it inside
// the repository:
//
//	go run ./tests/bench [-run NAME]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/tests/interrupt"
	"github.com/beeline-lb/beeline/tests/mounts"
)

// benchmark is a measurement that is made in a sandbox.
type benchmark struct {
	name string
	// times is how often the whole is repeated, each time in a new process.
	times int
	// cluster says that it needs what [buildCluster] builds.
	cluster bool
	// run measures, and returns the samples of each of its runs. What it starts ends
	// with it or with its process.
	run func(context.Context, *sandbox) ([]samples, error)
}

func benchmarks() []benchmark {
	list := []benchmark{
		{name: "connect", times: 3, run: measureConnect},
		{name: "algorithms", times: 3, run: measureAlgorithms},
		{name: "slow", times: 3, run: measureSlow},
		{name: "resolver", times: 3, run: measureResolver},
		{name: "monitor", times: 3, run: measureMonitor},
		{name: "monitor-flood", times: 3, run: measureFlood},
		{name: "tcp", times: 3, run: measureTCP},
		{name: "packets", times: 3, run: measurePackets},
		{name: "xdp-packets", times: 3, run: measureXDP},
		{name: "xdp-flows", times: 2, run: measureXDPFlows},
		{name: "xdp-tables", times: 2, run: measureXDPTables},
		{name: "nodeport", times: 2, cluster: true, run: measureNodePort},
		{name: "memory", times: 1, run: measureMemory},
		{name: "sizes", times: 1, cluster: true, run: measureSizes},
		{name: "idle", times: 1, cluster: true, run: measureIdle},
	}
	for _, l := range shapes {
		list = append(list, benchmark{name: "control-" + l.String(), times: 1, cluster: true, run: l.measureControl})
	}
	return append(list, benchmark{name: "control-growth", times: 1, cluster: true, run: measureGrowth})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), interrupt.Signals()...)
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
	only := flag.String("run", "", "run one benchmark, or those of a group (control, xdp), and write no report: "+strings.Join(names(), ", "))
	flag.Parse()
	list := slices.DeleteFunc(benchmarks(), func(b benchmark) bool { return !b.matches(*only) })
	if len(list) == 0 {
		return fmt.Errorf("-run %s: no such benchmark: there are %s", *only, strings.Join(names(), ", "))
	}
	if err := mounts.Private(); err != nil {
		return err
	}
	all, u, err := runAll(ctx, list)
	if err != nil {
		return err
	}
	m, err := look(u)
	if err != nil {
		return err
	}
	figures := judge(all)
	if *only == "" {
		if err := writeReport(m, figures); err != nil {
			return err
		}
	}
	fmt.Printf("other processes took %.0f %% of the CPUs, other virtual machines %.0f %%\n", m.Others, m.Stolen)
	return printFigures(os.Stdout, figures)
}

// runAll runs the benchmarks one after the other, and returns where the machine's
// CPU time went meanwhile.
func runAll(ctx context.Context, list []benchmark) (all results, used usage, err error) {
	built, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "beeline-bench-")
	if err != nil {
		return nil, used, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built)) }()
	if slices.ContainsFunc(list, func(b benchmark) bool { return b.cluster }) {
		if err := buildCluster(ctx, built); err != nil {
			return nil, used, err
		}
	}
	all = make(results)
	for _, b := range list {
		for i := range b.times {
			fmt.Fprintf(os.Stderr, "%s: run %d of %d\n", b.name, i+1, b.times)
			runs, u, err := isolate(ctx, b.name, built)
			if err != nil {
				return nil, used, fmt.Errorf("%s: %w", b.name, err)
			}
			used = used.add(u)
			for _, s := range runs {
				all.add(s)
			}
		}
	}
	all.derive()
	return all, used, nil
}

// matches reports whether the benchmark is selected by name: its own, that of its
// group, or none.
func (b benchmark) matches(name string) bool {
	return name == "" || b.name == name || strings.HasPrefix(b.name, name+"-")
}

func find(name string) (benchmark, error) {
	for _, b := range benchmarks() {
		if b.name == name {
			return b, nil
		}
	}
	return benchmark{}, fmt.Errorf("no benchmark %q", name)
}

func names() []string {
	var list []string
	for _, b := range benchmarks() {
		list = append(list, b.name)
	}
	return list
}
