package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/drain"
	"github.com/beeline-lb/beeline/pkg/version"
)

const long = `Serves the Services of a Kubernetes cluster, or of a folder of manifests, on this
node: a process that connects to a Service address reaches one of its endpoints.

Without --manifests, Services and EndpointSlices come from the API server that
--kubeconfig or --master names, else from the one of the pod that the agent runs
in. With --manifests, they come from the YAML and JSON files in a folder, and the
agent needs no cluster.

Settings come from flags and from the files of --config, which hold kube-proxy's
KubeProxyConfiguration, a BeelineConfiguration or both. A flag that is given
takes precedence over the files.

When the agent ends, its programs and maps stay and go on serving; started again it
takes over without a connection lost. --cleanup removes everything, --drain hands
Services over to another proxy first and waits until connections have ended.`

const example = `  # Serve the manifests of a folder, with addresses assigned from 10.96.0.0/16:
  beeline-agent --manifests /etc/beeline/manifests --service-cluster-ip-range 10.96.0.0/16

  # Serve a cluster:
  beeline-agent --kubeconfig /etc/beeline/kubeconfig`

func newCommand(out io.Writer) *cobra.Command {
	var (
		down, drainFirst, kubeProxyDown, bestEffort, initOnly bool
		writeTo                                               string
	)
	cmd := &cobra.Command{
		Use:           "beeline-agent",
		Short:         "Service load balancing for a node",
		Long:          long,
		Example:       example,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := config.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&down, "cleanup", false, "remove every program, link and map of Beeline and exit")
	cmd.Flags().BoolVar(&drainFirst, "drain", false, "hand Services over to another proxy that serves already, wait until the connections of clients outside of the node have ended, then do as --cleanup")
	cmd.Flags().BoolVar(&kubeProxyDown, "cleanup-kube-proxy", false, "remove the rules that a stopped kube-proxy left in iptables, nftables and IPVS, nothing else, and exit")
	cmd.Flags().BoolVar(&bestEffort, "best-effort", false, "with --cleanup-kube-proxy: say what could not be removed and exit with 0, as an init container without which the agent would not start")
	cmd.Flags().BoolVar(&initOnly, "init-only", false, "prepare the node as a privileged init container, and exit: mount a BPF file system at --bpffs unless one is there")
	cmd.Flags().StringVar(&writeTo, "write-config-to", "", "write the configuration that results from files, flags and defaults to this file and exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if kubeProxyDown {
			return cleanupKubeProxy(cmd.Context(), out, bestEffort)
		}
		if down {
			bpffs, err := flags.BPFFS()
			if err != nil {
				return err
			}
			return cleanup(cmd.Context(), out, bpffs)
		}
		c, err := flags.Load()
		if err != nil {
			return err
		}
		if initOnly {
			return initHost(out, c.Beeline.BPFFS)
		}
		s, err := c.Settings()
		if err != nil {
			return err
		}
		if drainFirst {
			return drainAndCleanup(cmd.Context(), out, s)
		}
		if writeTo != "" {
			logIgnored(c)
			return c.Write(writeTo)
		}
		if err := logsapi.ValidateAndApply(&c.KubeProxy.Logging, nil); err != nil {
			return err
		}
		logIgnored(c)
		return serve(cmd.Context(), s)
	}
	return cmd
}

// logIgnored logs what of kube-proxy's configuration has no effect.
func logIgnored(c *config.Config) {
	_, unknown := c.Unknown()
	for _, err := range unknown {
		klog.Warningf("%v: of another version of kube-proxy, or mistyped; it has no effect", err)
	}
	if unused := c.Unused(); len(unused) > 0 {
		klog.InfoS("Settings of kube-proxy without effect here", "fields", strings.Join(unused, " "))
	}
}

func cleanup(ctx context.Context, out io.Writer, bpffs string) error {
	removed, err := drain.Cleanup(ctx, bpffs)
	return leave(ctx, out, bpffs, removed, err)
}

// drainAndCleanup cleans up when the connections that are served have ended.
func drainAndCleanup(ctx context.Context, out io.Writer, s *config.Settings) error {
	last := -1
	removed, err := drain.Run(ctx, drain.Options{
		BPFFS:    s.Beeline.BPFFS,
		Timeouts: s.Timeouts,
		Waiting: func(flows int) {
			if flows != last {
				fmt.Fprintln(out, "waiting for", flows, "connections to end")
			}
			last = flows
		},
	})
	return leave(ctx, out, s.Beeline.BPFFS, removed, err)
}

// leave removes what is of use only beside the programs, and says what was removed.
func leave(ctx context.Context, out io.Writer, bpffs string, removed []string, err error) error {
	if err == nil && bpffs == datapath.DefaultBPFFS {
		var unmounted string
		if unmounted, err = datapath.UnmountCgroup2(); unmounted != "" {
			removed = append(removed, unmounted)
		}
	}
	for _, path := range removed {
		fmt.Fprintln(out, "removed", path)
	}
	if err == nil && len(removed) == 0 {
		fmt.Fprintln(out, "nothing to remove in", bpffs)
	}
	if err != nil {
		return err
	}
	return leaveNetfilter(ctx, out)
}
