package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/version"
)

const long = `Serves the Services of a Kubernetes cluster, or of a folder of manifests, on this
node: a process that connects to a Service address reaches one of its endpoints.

Without --manifests, Services and EndpointSlices come from the API server that
--kubeconfig or --master names, else from the one of the pod that the agent runs
in. With --manifests, they come from the YAML and JSON files in a folder, and the
agent needs no cluster.

When the agent ends, what it has set up stays and goes on to serve; started again
it takes over without a connection lost. --cleanup takes everything down.`

const example = `  # Serve the manifests of a folder, with addresses assigned from 10.96.0.0/16:
  beeline-agent --manifests /etc/beeline/manifests --service-cluster-ip-range 10.96.0.0/16

  # Serve a cluster:
  beeline-agent --kubeconfig /etc/kubernetes/kubelet.conf`

// The values of --socket-lb.
const (
	socketLBAll  = "all"
	socketLBHost = "host-namespace-only"
)

// options are the flags.
type options struct {
	manifests  string
	stateDir   string
	kubeconfig string
	master     string

	hostname string
	nodeIPs  []string

	nodePortAddresses []string
	serviceRanges     []string

	cgroup string
	bpffs  string
	sizes  bpfmap.Sizes

	timeouts flow.Timeouts

	devices         []string
	podDevices      []string
	socketLB        string
	tcMode          string
	snatPorts       string
	clusterCIDRs    []string
	detectLocalMode string

	minSyncPeriod  time.Duration
	metricsAddress string
	healthAddress  string

	cleanup bool
}

func newCommand(out io.Writer) *cobra.Command {
	o := &options{sizes: bpfmap.DefaultSizes, timeouts: flow.DefaultTimeouts}
	cmd := &cobra.Command{
		Use:           "beeline-agent",
		Short:         "Service load balancing for a node",
		Long:          long,
		Example:       example,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.cleanup {
				return cleanup(out, o.bpffs)
			}
			c, err := o.config()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c)
		},
	}
	o.addFlags(cmd.Flags())
	addVerbosity(cmd.Flags())
	return cmd
}

// addVerbosity adds klog's --v and --vmodule.
func addVerbosity(flags *pflag.FlagSet) {
	var all flag.FlagSet
	klog.InitFlags(&all)
	for _, name := range []string{"v", "vmodule"} {
		flags.AddGoFlag(all.Lookup(name))
	}
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.manifests, "manifests", "", "folder of Service and EndpointSlice files to serve in place of a cluster's")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/beeline", "folder that keeps what was assigned to the Services of --manifests")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file that leads to the API server")
	f.StringVar(&o.master, "master", "", "address of the API server, in place of the kubeconfig's")
	f.StringVar(&o.hostname, "hostname-override", "", "name of this node (default the host name)")
	f.StringSliceVar(&o.nodeIPs, "node-ip", nil, "this node's own IP, one of each family (default the Node object's)")
	f.StringSliceVar(&o.nodePortAddresses, "nodeport-addresses", nil, `CIDRs of the local addresses that NodePorts answer on, or "primary" for the node's own IP (default every local address)`)
	f.StringSliceVar(&o.serviceRanges, "service-cluster-ip-range", nil, "CIDRs of cluster IPs, one of each family: unallocated addresses in them are refused, and --manifests assigns from them")
	f.StringSliceVar(&o.devices, "devices", []string{datapath.DevicesAuto}, "names of the devices that face clients or other nodes, patterns like eth* allowed; auto finds them, none serves only processes of this node")
	f.StringSliceVar(&o.podDevices, "pod-devices", nil, "names of the host's side of pods' devices, patterns like veth* allowed, for pods whose sockets cannot or must not be translated: their packets are")
	f.StringVar(&o.socketLB, "socket-lb", socketLBAll, "whose sockets are translated: all, or host-namespace-only for those of the node's network namespace (then name --pod-devices)")
	f.StringVar(&o.tcMode, "tc-mode", string(datapath.TCAuto), "how to attach to devices: tcx, clsact or auto")
	_ = f.MarkHidden("tc-mode")
	f.StringVar(&o.snatPorts, "snat-port-range", "61000-65535", "source ports of clients' connections to endpoints on other nodes; should not overlap net.ipv4.ip_local_port_range")
	f.StringSliceVar(&o.clusterCIDRs, "cluster-cidr", nil, "CIDRs of pods, one of each family: clients in them are inside the cluster")
	f.StringVar(&o.detectLocalMode, "detect-local-mode", "", "how clients inside the cluster are told: ClusterCIDR, the default with --cluster-cidr")
	f.StringVar(&o.cgroup, "cgroup-root", "", "cgroup2 folder whose processes are served (default where cgroup2 is mounted)")
	f.StringVar(&o.bpffs, "bpffs", datapath.DefaultBPFFS, "folder on a BPF file system for what outlives the agent")
	f.Uint32Var(&o.sizes.Frontends, "max-frontends", o.sizes.Frontends, "addresses and ports that can be served")
	f.Uint32Var(&o.sizes.Services, "max-services", o.sizes.Services, "Service ports that can be served, each IP family counted")
	f.Uint32Var(&o.sizes.Backends, "max-backends", o.sizes.Backends, "endpoints of all Service ports")
	f.Uint32Var(&o.sizes.Slots, "max-slots", o.sizes.Slots, "places of endpoints in sets")
	f.Uint32Var(&o.sizes.Affinity, "max-affinity-entries", o.sizes.Affinity, "clients with session affinity; the one idle longest gives way")
	f.Uint32Var(&o.sizes.UDPPeers, "max-udp-peers", o.sizes.UDPPeers, "twice the Service addresses that unconnected UDP sockets use; the one idle longest gives way")
	f.Uint32Var(&o.sizes.SourceRanges, "max-source-ranges", o.sizes.SourceRanges, "loadBalancerSourceRanges of all Service ports")
	f.Uint32Var(&o.sizes.Flows, "max-flows", o.sizes.Flows, "twice the connections of clients outside of the node; the one idle longest gives way")
	f.Uint32Var(&o.sizes.Clients, "max-clients", o.sizes.Clients, "clients outside of the node with session affinity; the one idle longest gives way")
	o.timeouts.AddFlags(f)
	f.DurationVar(&o.minSyncPeriod, "min-sync-period", 0, "shortest time between two rounds of changes")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:10249", "address and port for /metrics; empty is off")
	f.StringVar(&o.healthAddress, "healthz-bind-address", "0.0.0.0:10256", "address and port for /healthz and /livez; empty is off")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove every program, link and map of Beeline and exit")
}

// config is the flags, understood.
type config struct {
	options
	nodeName  string
	nodeAddrs []netip.Addr
	nodePorts policy.NodePortAddresses
	ranges    []netip.Prefix
	podRanges []netip.Prefix
	// snatMin and snatMax bound the source ports of SNAT, both included.
	snatMin, snatMax uint16
}

// config checks the flags. Errors name the flag and what is allowed.
func (o *options) config() (*config, error) {
	c := &config{options: *o}
	var errs []error
	var err error
	if c.manifests != "" && (c.kubeconfig != "" || c.master != "") {
		errs = append(errs, errors.New("--manifests: cannot be combined with --kubeconfig or --master"))
	}
	errs = append(errs, c.timeouts.Check())
	if c.nodeName, err = nodeName(o.hostname); err != nil {
		errs = append(errs, fmt.Errorf("--hostname-override: %w", err))
	}
	if c.nodePorts, err = policy.ParseNodePortAddresses(o.nodePortAddresses); err != nil {
		errs = append(errs, fmt.Errorf("--nodeport-addresses: %w", err))
	}
	for _, s := range o.nodeIPs {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("--node-ip: %q is no IP address", s))
			continue
		}
		c.nodeAddrs = append(c.nodeAddrs, addr.Unmap())
	}
	if c.ranges, err = prefixes(o.serviceRanges); err != nil {
		errs = append(errs, fmt.Errorf("--service-cluster-ip-range: %w", err))
	}
	errs = append(errs, c.packets())
	if c.cgroup == "" {
		if c.cgroup, err = datapath.FindCgroup2(); err != nil {
			errs = append(errs, err)
		}
	}
	return c, errors.Join(errs...)
}

// packets checks the flags of what is served on devices.
func (c *config) packets() error {
	var errs []error
	var err error
	if err := datapath.CheckDevices(c.devices); err != nil {
		errs = append(errs, fmt.Errorf("--devices: %w", err))
	}
	if len(c.podDevices) > 0 {
		if err := datapath.CheckDevices(c.podDevices); err != nil {
			errs = append(errs, fmt.Errorf("--pod-devices: %w", err))
		}
	}
	if c.socketLB != socketLBAll && c.socketLB != socketLBHost {
		errs = append(errs, fmt.Errorf("--socket-lb: %q is none of %s, %s", c.socketLB, socketLBAll, socketLBHost))
	}
	if c.snatMin, c.snatMax, err = portRange(c.snatPorts); err != nil {
		errs = append(errs, fmt.Errorf("--snat-port-range: %w", err))
	}
	if c.podRanges, err = prefixes(c.clusterCIDRs); err != nil {
		errs = append(errs, fmt.Errorf("--cluster-cidr: %w", err))
	}
	return errors.Join(append(errs, c.checkDetectLocalMode())...)
}

func (c *config) checkDetectLocalMode() error {
	switch c.detectLocalMode {
	case "":
		return nil
	case "ClusterCIDR":
		if len(c.clusterCIDRs) == 0 {
			return errors.New("--detect-local-mode: ClusterCIDR needs --cluster-cidr")
		}
		return nil
	case "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix":
		return fmt.Errorf("--detect-local-mode: %s is not supported yet: use ClusterCIDR with --cluster-cidr", c.detectLocalMode)
	}
	return fmt.Errorf("--detect-local-mode: %q is not ClusterCIDR", c.detectLocalMode)
}

// prefixes parses CIDRs; bits beyond the prefix are cleared.
func prefixes(list []string) ([]netip.Prefix, error) {
	var parsed []netip.Prefix
	var errs []error
	for _, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			errs = append(errs, fmt.Errorf("%q is no CIDR", s))
			continue
		}
		parsed = append(parsed, p.Masked())
	}
	return parsed, errors.Join(errs...)
}

// portRange parses "61000-65535".
func portRange(s string) (first, last uint16, err error) {
	a, b, ok := strings.Cut(s, "-")
	low, errLow := strconv.ParseUint(a, 10, 16)
	high, errHigh := strconv.ParseUint(b, 10, 16)
	if !ok || errLow != nil || errHigh != nil || low == 0 || low > high {
		return 0, 0, fmt.Errorf("%q is no range of ports such as 61000-65535", s)
	}
	return uint16(low), uint16(high), nil
}

// nodeName returns the name of the Node object: the host name in lower case
// unless given.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("no host name to use: %w", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", errors.New("the node's name is empty")
	}
	return name, nil
}

func cleanup(out io.Writer, bpffs string) error {
	removed, err := datapath.Cleanup(bpffs)
	for _, path := range removed {
		fmt.Fprintln(out, "removed", path)
	}
	if err == nil && len(removed) == 0 {
		fmt.Fprintln(out, "nothing to remove in", bpffs)
	}
	return err
}
