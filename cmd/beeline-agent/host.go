package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/datapath"
)

// tuneHost makes the settings of the process that kube-proxy makes, too. The agent serves as
// well without, so what cannot be set, as in a container that may not, is only logged.
func tuneHost(c *config.Settings) {
	score := strconv.Itoa(int(*c.KubeProxy.OOMScoreAdj))
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0); err != nil {
		klog.InfoS("OOM score could not be set", "wanted", score, "err", err)
	}
}

// tuneConntrack makes those of connection tracking, as soon as the kernel has it: a CNI plugin or a
// firewall may load it long after the agent has started. What cannot be set is only logged.
func (a *agent) tuneConntrack(ctx context.Context) {
	if a.config.Netfilter == (conntrack.Settings{}) {
		return
	}
	changed, err := conntrack.ThisHost.ApplyWhenLoaded(ctx, a.config.Netfilter, time.Minute)
	if len(changed) > 0 {
		klog.InfoS("Connection tracking set", "changed", changed)
	}
	if err != nil {
		klog.InfoS("Some settings of connection tracking could not be changed", "err", err)
	}
}

// mountPlaces mounts what is missing of the file systems that the agent works with, and
// returns the cgroup whose processes are served.
func mountPlaces(b *config.BeelineConfiguration) (cgroup string, err error) {
	mounted, err := datapath.EnsureBPFFS(b.BPFFS)
	if errors.Is(err, datapath.ErrOtherMount) {
		return "", fmt.Errorf("%w; in a pod, mount it on the node or have a privileged container do so (beeline-agent --init-only)", err)
	}
	if err != nil {
		return "", err
	}
	if mounted {
		klog.InfoS("Mounted a BPF file system", "path", b.BPFFS)
	}
	if b.CgroupRoot != "" {
		return b.CgroupRoot, nil
	}
	cgroup, mounted, err = datapath.MountCgroup2()
	if mounted {
		klog.InfoS("Mounted the cgroup2 hierarchy", "path", cgroup)
	}
	if err == nil && datapath.PartOfCgroup2(cgroup) {
		klog.InfoS("A part of the cgroup2 hierarchy is mounted: sockets of processes outside of it are not served", "path", cgroup)
	}
	return cgroup, err
}

// initHost mounts a BPF file system at a folder of the node unless one is there.
func initHost(out io.Writer, bpffs string) error {
	mounted, err := datapath.MountBPFFS(bpffs)
	if err != nil {
		return err
	}
	if mounted {
		fmt.Fprintln(out, "mounted a BPF file system at", bpffs)
	} else {
		fmt.Fprintln(out, "a BPF file system is mounted at", bpffs)
	}
	return nil
}
