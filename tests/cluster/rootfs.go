package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suite is the Debian release of nodes and pods.
const suite = "bookworm"

// packages are what nodes, kube-proxy, add-ons and the pods of upstream's tests need.
var packages = []string{
	"bash", "bind9-dnsutils", "ca-certificates", "conntrack", "curl", "iperf",
	"iproute2", "ipset", "iptables", "iputils-ping", "mount", "netcat-openbsd", "nftables",
	"procps", "util-linux", "wget",
}

// superfluous is what a container never reads.
var superfluous = []string{
	"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info",
	"var/cache/apt", "var/lib/apt/lists", "var/log", "etc/resolv.conf", "etc/hostname",
}

// buildRootfs returns the folder with Debian's files, made once.
func buildRootfs(ctx context.Context, cache string) (string, error) {
	key := sha256.Sum256([]byte(suite + strings.Join(append(packages, superfluous...), " ")))
	dir := filepath.Join(cache, fmt.Sprintf("rootfs-%x", key[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	fmt.Fprintln(os.Stderr, "files of Debian for nodes and pods")
	tmp := filepath.Join(cache, "rootfs.building")
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase",
		"--include="+strings.Join(packages, ","), suite, tmp)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("debootstrap: %w\n%s", err, out)
	}
	for _, name := range superfluous {
		if err := os.RemoveAll(filepath.Join(tmp, name)); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Join(tmp, "var/log"), 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}
