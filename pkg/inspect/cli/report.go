package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

const reportLong = `Write an archive for a bug report: status, Services, backends, frontends and nodes
as the other commands print them, what "beeline verify" finds, the kernel, its settings
for the network, the network devices with their addresses, routes and BPF programs.

FILE is made anew and is the user's alone; "-" is standard output, and without a
name it is beeline-report-HOST-TIME.tar.gz. What could not be read is in
errors.txt. The archive has the names and addresses of the cluster, but no
secrets and, unless --flows is given, no clients. The agent's log and
configuration are not in it.`

func (c *command) reportCommand() *cobra.Command {
	var flows bool
	cmd := &cobra.Command{
		Use:   "report [FILE]",
		Short: "Write an archive for a bug report",
		Long:  reportLong,
		Args: func(cmd *cobra.Command, args []string) error {
			return noArgs(cmd, args[min(1, len(args)):])
		},
		RunE: func(_ *cobra.Command, args []string) error {
			host, err := os.Hostname()
			if err != nil {
				return err
			}
			name := fmt.Sprintf("beeline-report-%s-%s", host, c.Now().UTC().Format("20060102T150405Z"))
			if len(args) == 0 {
				args = []string{name + ".tar.gz"}
			}
			if args[0] == "-" {
				return c.writeReport(c.Out, name, flows)
			}
			file, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			if err := errors.Join(c.writeReport(file, name, flows), file.Close()); err != nil {
				return errors.Join(err, os.Remove(args[0]))
			}
			_, err = fmt.Fprintln(c.Out, args[0])
			return err
		},
	}
	cmd.Flags().BoolVar(&flows, "flows", false, "also the flows, which name clients")
	return cmd
}

// reportPart is a file of the archive.
type reportPart struct {
	name  string
	bytes func() ([]byte, error)
}

// writeReport writes the archive, whose files are in the folder dir. The error is one of
// writing: read errors go to errors.txt.
func (c *command) writeReport(to io.Writer, dir string, flows bool) error {
	zip := gzip.NewWriter(to)
	archive := tar.NewWriter(zip)
	put := func(name string, content []byte) error {
		header := &tar.Header{Name: dir + "/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: c.Now()}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	var missing bytes.Buffer
	for _, part := range c.reportParts(flows) {
		content, err := part.bytes()
		if err != nil {
			fmt.Fprintf(&missing, "%s: %v\n", part.name, err)
		}
		if len(content) == 0 {
			continue
		}
		if err := put(part.name, content); err != nil {
			return err
		}
	}
	if missing.Len() > 0 {
		if err := put("errors.txt", missing.Bytes()); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}

// reportParts lists what the archive holds.
func (c *command) reportParts(flows bool) []reportPart {
	parts := []reportPart{
		{"kernel.txt", kernelText},
		{"sysctl.txt", sysctlText},
		{"mounts.txt", mountsText},
		{"network.txt", networkText},
		{"version.txt", c.output("version")},
		{"status.txt", c.output("status", "-o", "wide")},
		{"verify.txt", c.verifyOutput},
	}
	lists := []string{"service", "backend", "frontend", "node"}
	if flows {
		lists = append(lists, "flow")
	}
	for _, list := range lists {
		parts = append(parts, reportPart{list + "s.txt", c.output(list, "list", "-o", "wide")},
			reportPart{list + "s.json", c.output(list, "list", "-o", "json")})
	}
	return append(parts, reportPart{"status.json", c.output("status", "-o", "json")})
}

// output returns what a command of beeline prints.
func (c *command) output(args ...string) func() ([]byte, error) {
	return func() ([]byte, error) {
		var out bytes.Buffer
		err := execute(Env{Out: &out, Err: io.Discard, Now: c.Now}, append([]string{"--bpffs", c.bpffs}, args...))
		return out.Bytes(), err
	}
}

// verifyOutput returns what "beeline verify" prints, in which is what could not be checked.
func (c *command) verifyOutput() ([]byte, error) {
	out, err := c.output("verify", "-o", "wide")()
	if len(out) > 0 {
		err = nil
	}
	return out, err
}

func kernelText() ([]byte, error) {
	version, err := os.ReadFile("/proc/version")
	limits, errLimits := os.ReadFile("/proc/self/limits")
	return append(version, limits...), errors.Join(err, errLimits)
}

// reportSysctls are the settings of the kernel that Services depend on, by patterns below
// /proc/sys. Not every kernel has each.
var reportSysctls = []string{
	"net/ipv4/ip_forward", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/route_localnet",
	"net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/disable_ipv6", "net/ipv4/ip_local_port_range",
	"net/ipv4/ip_local_reserved_ports", "net/ipv4/tcp_mtu_probing", "net/netfilter/nf_conntrack_max",
	"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_tcp_be_liberal", "net/core/bpf_jit_enable",
	"net/core/bpf_jit_harden", "net/core/netdev_max_backlog", "kernel/unprivileged_bpf_disabled",
}

func sysctlText() ([]byte, error) {
	var out bytes.Buffer
	var errs []error
	for _, pattern := range reportSysctls {
		paths, err := filepath.Glob("/proc/sys/" + pattern)
		errs = append(errs, err)
		for _, path := range paths {
			value, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // of a device that has just gone
			}
			errs = append(errs, err)
			fmt.Fprintf(&out, "%s = %s\n", strings.TrimPrefix(path, "/proc/sys/"), bytes.TrimSpace(value))
		}
	}
	return out.Bytes(), errors.Join(errs...)
}

// mountsText lists the file systems that the agent works with.
func mountsText() ([]byte, error) {
	all, err := os.ReadFile("/proc/self/mountinfo")
	var out bytes.Buffer
	for line := range bytes.Lines(all) {
		for _, kind := range []string{" - bpf ", " - cgroup2 "} {
			if bytes.Contains(line, []byte(kind)) {
				out.Write(line)
			}
		}
	}
	return out.Bytes(), err
}

// networkText lists devices with their addresses and BPF programs, and the routes.
func networkText() ([]byte, error) {
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	var errs []error
	for _, l := range links {
		a := l.Attrs()
		fmt.Fprintf(&out, "%d: %s %s mtu %d %s master %d\n", a.Index, a.Name, l.Type(), a.MTU, a.Flags, a.MasterIndex)
		if a.Xdp != nil && a.Xdp.Attached {
			fmt.Fprintf(&out, "    xdp program %d\n", a.Xdp.ProgId)
		}
		addrs, err := rtnl.Addrs(l)
		errs = append(errs, err)
		for _, addr := range addrs {
			fmt.Fprintf(&out, "    %s\n", addr.IPNet)
		}
		errs = append(errs, tcText(&out, l))
	}
	routes, err := rtnl.Routes(func(*netlink.Route) bool { return true })
	for _, r := range routes {
		fmt.Fprintln(&out, r)
	}
	return out.Bytes(), errors.Join(append(errs, err)...)
}

// tcText lists the programs at tc of a device: those of tcx in their order, and the filters
// of clsact.
func tcText(out io.Writer, l netlink.Link) error {
	var errs []error
	for _, hook := range []struct {
		name   string
		tcx    ebpf.AttachType
		parent uint32
	}{
		{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
		{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
	} {
		// A kernel before Linux 6.6 has no tcx, which is an error.
		if attached, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: hook.tcx}); err == nil {
			for _, p := range attached.Programs {
				fmt.Fprintf(out, "    tcx %s program %d\n", hook.name, p.ID)
			}
		}
		filters, err := rtnl.Filters(l, hook.parent)
		errs = append(errs, err)
		for _, f := range filters {
			fmt.Fprintf(out, "    tc %s %s\n", hook.name, f)
		}
	}
	return errors.Join(errs...)
}
