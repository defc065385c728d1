package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// startKubeProxy runs a kube-proxy in the namespace of the calling thread. stop
// ends it.
func startKubeProxy(binary, dir, mode, node, kubeconfig string) (stop func() error, err error) {
	log, err := os.Create(filepath.Join(dir, "kube-proxy.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary,
		"--proxy-mode="+mode, "--hostname-override="+node, "--kubeconfig="+kubeconfig,
		"--nodeport-addresses="+lanRange.String(),
		// What concerns the whole machine is left as it is.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--oom-score-adj=0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start kube-proxy: %w", err)
	}
	return func() error {
		err := cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait() // it ends by the signal
		return err
	}, nil
}

// forgetConnections makes the connection tracking of this network namespace forget
// connections soon after they have ended, so that its table does not fill up.
func forgetConnections() error {
	return errors.Join(
		sysctl("netfilter/nf_conntrack_tcp_timeout_time_wait", "1"),
		sysctl("netfilter/nf_conntrack_tcp_timeout_close", "1"))
}
