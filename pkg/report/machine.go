package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
)

// Machine returns the parts that tell of the kernel and of the network of this machine. They need no
// datapath.
func Machine() []Part {
	return []Part{
		{"kernel.txt", whole(kernelText)},
		{"sysctl.txt", whole(sysctlText)},
		{"mounts.txt", whole(mountsText)},
		{"network.txt", whole(networkText)},
		{"routes.txt", whole(routesText)},
		{"links.txt", whole(linksText)},
		{"programs.txt", whole(programsText)},
		{"netfilter.txt", whole(netfilterText)},
		{"kube-proxy.txt", whole(leftoversText)},
		{"dmesg.txt", whole(dmesgText)},
	}
}

// btf is where the kernel shows the types of its own.
const btf = "/sys/kernel/btf/vmlinux"

func kernelText(context.Context) ([]byte, error) {
	version, errVersion := os.ReadFile("/proc/version")
	limits, errLimits := os.ReadFile("/proc/self/limits")
	var out bytes.Buffer
	out.Write(version)
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		fmt.Fprintf(&out, "machine %s, release %s\n", unix.ByteSliceToString(name.Machine[:]), unix.ByteSliceToString(name.Release[:]))
	}
	if info, err := os.Stat(btf); err == nil {
		fmt.Fprintf(&out, "BTF: %s, %d bytes\n", btf, info.Size())
	} else {
		fmt.Fprintf(&out, "BTF: none (%v)\n", err)
	}
	fmt.Fprintf(&out, "connection tracking that programs can ask: %t\n", datapath.HaveConntrack())
	fmt.Fprintf(&out, "programs may read the kernel's memory: %t\n", datapath.MayReadKernel())
	missing := datapath.MissingFeatures()
	if len(missing) == 0 {
		out.WriteString("features: all that Beeline needs\n")
	}
	for _, m := range missing {
		fmt.Fprintf(&out, "features: %v\n", m)
	}
	out.WriteString("\n")
	out.Write(limits)
	return out.Bytes(), errors.Join(errVersion, errLimits)
}

// sysctls are the settings of the kernel that Services depend on, by patterns below
// /proc/sys. Not every kernel has each.
var sysctls = []string{
	"net/ipv4/ip_forward", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/route_localnet",
	"net/ipv4/conf/*/accept_local", "net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/accept_ra", "net/ipv6/conf/*/disable_ipv6",
	"net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/tcp_mtu_probing",
	"net/ipv4/icmp_msgs_per_sec",
	"net/ipv4/vs/conn_reuse_mode", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_count",
	"net/netfilter/nf_conntrack_tcp_be_liberal", "net/core/bpf_jit_enable", "net/core/bpf_jit_harden",
	"net/core/netdev_max_backlog", "net/core/somaxconn", "kernel/unprivileged_bpf_disabled", "kernel/dmesg_restrict",
}

func sysctlText(context.Context) ([]byte, error) {
	var out bytes.Buffer
	var errs []error
	for _, pattern := range sysctls {
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
func mountsText(context.Context) ([]byte, error) {
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

// leftoversText names what a kube-proxy has left.
func leftoversText(context.Context) ([]byte, error) {
	left, err := kubeproxy.Left()
	if err != nil {
		return nil, err
	}
	if len(left) == 0 {
		return []byte("kube-proxy has left nothing.\n"), nil
	}
	return []byte("kube-proxy has made:\n" + strings.Join(left, "\n") + "\n"), nil
}

// maxLog is how much is kept of a log: its end.
const maxLog = 256 << 10

// The commands of syslog(2).
const (
	syslogReadAll    = 3
	syslogBufferSize = 10
)

func dmesgText(context.Context) ([]byte, error) {
	size, err := unix.Klogctl(syslogBufferSize, nil)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log (CAP_SYSLOG, sysctl kernel.dmesg_restrict): %w", err)
	}
	log := make([]byte, size)
	n, err := unix.Klogctl(syslogReadAll, log)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log (CAP_SYSLOG, sysctl kernel.dmesg_restrict): %w", err)
	}
	return tail(log[:n], maxLog), nil
}

// tail returns the last whole lines of a text that fit.
func tail(text []byte, size int) []byte {
	if len(text) <= size {
		return text
	}
	text = text[len(text)-size:]
	return text[bytes.IndexByte(text, '\n')+1:]
}
