package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Ports of Beeline while a kube-proxy has its own.
const (
	spareHealthzPort = 19256
	spareMetricsPort = 19249
)

// chartValues are the values of the chart that matter here.
type chartValues map[string]any

// defaultValues are what the chart cannot know, once Beeline serves alone.
func (c *cluster) defaultValues() (chartValues, error) {
	repository, tag, ok := strings.Cut(c.Image, ":")
	if !ok {
		return nil, fmt.Errorf("image %q has no tag", c.Image)
	}
	values := chartValues{
		"image":     map[string]any{"repository": repository, "tag": tag, "pullPolicy": "Never"},
		"apiServer": map[string]any{"host": routerAddr4, "port": 6443},
		"config":    map[string]any{"serviceClusterIPRanges": strings.Split(serviceCIDRs, ",")},
		// Upstream's tests ask every node for it.
		"metrics":        map[string]any{"address": "0.0.0.0"},
		"nodeSelector":   map[string]any{proxyLabel(proxyBeeline): "wanted"},
		"updateStrategy": map[string]any{"maxUnavailable": 1},
		// Upstream's tests find the proxy's pods by this.
		"podLabels": map[string]any{"k8s-app": "kube-proxy"},
		"extraArgs": []string{"--v=2"},
	}
	// The chart finds it in the ConfigMap of a kube-proxy that was there first.
	if c.Proxy != proxyKubeProxy {
		values["kubeProxyConfig"] = map[string]any{"clusterCIDR": clusterCIDRs, "detectLocalMode": "ClusterCIDR"}
	}
	return values, nil
}

// besideKubeProxy are changes of the values for the time that both run.
func besideKubeProxy() chartValues {
	return chartValues{
		"healthz":          map[string]any{"port": spareHealthzPort},
		"metrics":          map[string]any{"address": "0.0.0.0", "port": spareMetricsPort},
		"cleanupKubeProxy": false,
	}
}

// installChart installs Beeline, or upgrades it to the values and those that
// change them, and waits until its pods are as they say.
func (c *cluster) installChart(ctx context.Context, changes chartValues) error {
	values, err := c.defaultValues()
	if err != nil {
		return err
	}
	for name, value := range changes {
		values[name] = value
	}
	b, err := json.Marshal(values)
	if err != nil {
		return err
	}
	file := filepath.Join(c.Dir, "values.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return err
	}
	if err := c.helm(ctx, "upgrade", "--install", "beeline", c.Chart, "--values="+file, "--set="+c.Set); err != nil {
		return err
	}
	return c.rolledOut(ctx, "daemonset/beeline")
}

// helm runs helm in the namespace kube-system.
func (c *cluster) helm(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Programs.Helm, "helm"), append(args, "--namespace=kube-system")...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.credential("admin.conf"), "HOME="+c.Dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %v: %w\n%s", args, err, out)
	}
	return nil
}
