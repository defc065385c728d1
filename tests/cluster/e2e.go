package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// defaultFocus are the tests of what a proxy does. "KubeProxy" and the disruptive
// ones are in it for the comparison with kube-proxy.
const defaultFocus = `\[sig-network\] (Services|Networking|Conntrack|EndpointSlice|Endpoints|Traffic Distribution|` +
	`Topology Hints|Service endpoints latency|KubeProxy|LoadBalancers|Proxy|DNS|HostPort|NoSNAT|` +
	`Connectivity Pod Lifecycle|Service CIDRs|ServiceCIDR and IPAddress API|\[Feature:IPv6DualStack\])`

// defaultSkip are tests that need what no machine without the outside world has:
// other providers, SSH to the nodes, the Internet.
const defaultSkip = `Feature:Networking-(IPv4|IPv6|DNS|Performance)|IPerf2|Feature:SCTPConnectivity|DNS configMap|PerformanceDNS`

// e2e runs upstream's tests. Those that run at the same time come first, as
// upstream does it; ginkgo runs the serial ones alone.
func e2e(ctx context.Context, c *cluster) error {
	dir := filepath.Join(c.Reports, c.variant())
	if c.Again {
		last, err := readReport(filepath.Join(dir, reportName))
		if err != nil {
			return err
		}
		if c.Focus = last.notPassedPattern(); c.Focus == "" {
			c.say("all passed last time")
			return nil
		}
		dir = filepath.Join(dir, againName)
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	if c.AddonVersion != "" {
		if err := os.WriteFile(filepath.Join(dir, versionName), []byte(c.AddonVersion+"\n"), 0o644); err != nil {
			return err
		}
	}
	ginkgo := exec.CommandContext(ctx, filepath.Join(c.Programs.Tests, "ginkgo"),
		"run", fmt.Sprintf("--procs=%d", c.Procs), "--timeout=3h", "--no-color", "--silence-skips",
		"--focus="+c.Focus, "--skip="+c.Skip,
		"--output-dir="+dir, "--junit-report="+reportName,
		filepath.Join(c.Programs.Tests, "e2e.test"), "--",
		"--kubeconfig="+c.credential("admin.conf"),
		"--kubectl-path="+filepath.Join(c.Programs.Node, "kubectl"),
		"--provider=skeleton", "--node-os-distro=debian", "--disable-log-dump",
		fmt.Sprintf("--num-nodes=%d", c.Nodes))
	ginkgo.Cancel = func() error { return ginkgo.Process.Signal(unix.SIGINT) }
	ginkgo.WaitDelay = time.Minute
	ginkgo.Dir = c.Dir
	ginkgo.Env = append(os.Environ(), "HOME="+c.Dir, "TMPDIR="+c.Dir)
	log, err := os.Create(filepath.Join(dir, "output.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	ginkgo.Stdout, ginkgo.Stderr = log, log
	c.say("upstream's tests run; see %s", log.Name())
	failed := ginkgo.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	results, err := readReport(filepath.Join(dir, reportName))
	if err != nil {
		return errors.Join(failed, err)
	}
	c.say("%s", results.summary())
	if err := c.counted(results.summary()); err != nil {
		return err
	}
	for _, r := range results {
		if r.outcome == outcomeFailed {
			fmt.Printf("  failed: %s\n          %s\n", r.name, r.message)
		}
	}
	if failed != nil {
		return fmt.Errorf("upstream's tests: %w", failed)
	}
	return nil
}

// variant names the cluster's kind in the folder of reports.
func (c *cluster) variant() string {
	name := c.Proxy
	if c.Proxy == proxyKubeProxy {
		name += "-" + c.Mode
	}
	if c.Fabric != fabricRoutes {
		name += "-" + c.Fabric
	}
	if c.Policy != "" {
		name += "-" + c.Policy
	}
	if c.Set != "" {
		name += "-" + c.Set
	}
	return name
}
