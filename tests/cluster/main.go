// Command cluster runs a real Kubernetes cluster on this machine, its nodes in
// namespaces, and upstream's end-to-end tests and our own against it.
//
//	go run ./tests/cluster up         a cluster to look at, until interrupted
//	go run ./tests/cluster e2e        upstream's tests of the network
//
// It needs root. All that it makes is gone when it has ended, however it ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/tests/interrupt"
	"github.com/beeline-lb/beeline/tests/mounts"
	"github.com/beeline-lb/beeline/tests/programs"
)

// The first process of a node works on its main thread, see runNode.
func init() { runtime.LockOSThread() }

func main() {
	if err := dispatch(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// dispatch does what this process is for: a node, the cluster, or the command.
func dispatch() error {
	if env := os.Getenv(initEnv); env != "" {
		return runNode(env)
	}
	ctx, stop := signal.NotifyContext(context.Background(), interrupt.Signals()...)
	defer stop()
	if env := os.Getenv(childEnv); env != "" {
		var s settings
		if err := json.Unmarshal([]byte(env), &s); err != nil {
			return err
		}
		err := runCluster(ctx, s)
		if err != nil {
			err = errors.Join(err, os.WriteFile(whyFile(s.Reports, s.Task), []byte(err.Error()), 0o644))
		}
		return err
	}
	return newCommand().ExecuteContext(ctx)
}

func newCommand() *cobra.Command {
	s := &settings{}
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes cluster on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	f := root.PersistentFlags()
	f.StringVar(&s.Proxy, "proxy", proxyBeeline, "what serves the Services: beeline, kube-proxy or none")
	f.StringVar(&s.Mode, "mode", "nftables", "mode of kube-proxy: nftables or iptables")
	f.StringVar(&s.Fabric, "fabric", fabricRoutes, "how packets of pods come to other nodes: "+strings.Join(fabrics, ", "))
	f.StringVar(&s.Policy, "policy", "", "what enforces NetworkPolicy beside that: "+policyKubeNetworkPolicies)
	f.StringVar(&s.Set, "set", "", "values of Beeline's chart, as for helm: config.forwardingMode=dsr")
	f.IntVar(&s.Nodes, "nodes", 3, "number of nodes, in three zones by turns")
	f.IntVar(&s.Procs, "procs", 4, "upstream's tests that run at the same time")
	f.StringVar(&s.Reports, "reports", "", "folder for results and logs (default bin/cluster in the repository)")
	f.StringVar(&s.Image, "image", "ghcr.io/beeline-lb/beeline:cluster", "name of Beeline's image in that file")
	f.StringVar(&s.Archive, "archive", "bin/cluster-image/beeline-"+runtime.GOARCH+".tar", "file with Beeline's image, from make cluster-image")
	for name, task := range tasks {
		cmd := &cobra.Command{
			Use:   name,
			Short: task.short,
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				s.Task = name
				return launch(cmd.Context(), *s)
			},
		}
		if name == "e2e" {
			cmd.Flags().StringVar(&s.Focus, "focus", defaultFocus, "regular expression of the tests to run")
			cmd.Flags().BoolVar(&s.Again, "again", false, "run those tests only that failed or were skipped last time")
			cmd.Flags().StringVar(&s.Skip, "skip", defaultSkip, "regular expression of those to leave out")
		}
		if name == soakTask {
			cmd.Flags().DurationVar(&s.Duration, "duration", time.Hour, "how long to disturb the cluster")
			cmd.Flags().Uint64Var(&s.Seed, "seed", rand.Uint64N(1e6), "what the order of the disturbances follows from")
		}
		root.AddCommand(cmd)
	}
	root.AddCommand(newTable(s), newMatrix(s))
	return root
}

// launch builds what is missing, runs the cluster and takes everything down.
func launch(ctx context.Context, s settings) (err error) {
	if err := mounts.Private(); err != nil {
		return err
	}
	if s.Task == "migrate" {
		s.Proxy = proxyKubeProxy
	}
	if s.Task == soakTask {
		s.Set = strings.TrimSuffix(soakTables+","+s.Set, ",")
	}
	if err := s.validate(); err != nil {
		return err
	}
	err = build(ctx, &s)
	if errors.Is(err, programs.ErrNoCheckout) {
		fmt.Println("skipped:", err)
		return nil
	}
	if err != nil {
		return err
	}
	p, err := newPlace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	err = p.run(ctx, s)
	if errors.Is(err, context.Canceled) || ctx.Err() != nil && s.Task != soakTask {
		return nil // interrupted, as asked; a soak fails by what it had found
	}
	return err
}

// reportsFolder returns the folder for results and logs, the default one for "".
func reportsFolder(folder string) (string, error) {
	if folder != "" {
		return filepath.Abs(folder)
	}
	root, err := programs.Root()
	return filepath.Join(root, "bin", "cluster"), err
}

// build fills in what the cluster is made of.
func build(ctx context.Context, s *settings) (err error) {
	root, err := programs.Root()
	if err != nil {
		return err
	}
	if s.Reports, err = reportsFolder(s.Reports); err != nil {
		return err
	}
	cache := filepath.Join(root, ".cache", "cluster")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	if s.Programs, err = buildPrograms(ctx, s); err != nil {
		return err
	}
	if s.AddonVersion, err = addons[s.Fabric].version(ctx); err != nil {
		return err
	}
	unlock, err := programs.Lock(filepath.Join(cache, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if s.Rootfs, err = buildRootfs(ctx, cache); err != nil {
		return err
	}
	if s.Images, err = buildArchives(ctx, cache, s); err != nil {
		return err
	}
	if s.Task == metalLBTask {
		if err := buildMetalLB(ctx, cache, s); err != nil {
			return err
		}
	}
	if s.Plugin, err = buildPlugin(ctx, cache); err != nil {
		return err
	}
	s.Chart = filepath.Join(root, "charts", "beeline")
	if s.Proxy == proxyKubeProxy && (s.Task == "e2e" || s.Task == metalLBTask || s.Task == powerCutTask) {
		return nil
	}
	if s.Archive, err = filepath.Abs(s.Archive); err != nil {
		return err
	}
	if _, err := os.Stat(s.Archive); err != nil {
		return fmt.Errorf("image of Beeline, see make cluster-image: %w", err)
	}
	s.Images = append(s.Images, s.Archive)
	return nil
}
