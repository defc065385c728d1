package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/beeline-lb/beeline/tests/programs"
)

// programFolders are the folders of what is built from other projects.
type programFolders struct {
	Kubernetes, Node, Tests, TestImages, Containerd, Runc, CNI, CoreDNS, Helm, Addon, Policy, MetalLB string
}

// buildPrograms builds what the cache lacks of such a cluster. That takes minutes the
// first time.
func buildPrograms(ctx context.Context, s *settings) (f programFolders, err error) {
	if a, ok := addons[s.Fabric]; ok {
		// First, for what it is built from may be missing.
		fmt.Fprintf(os.Stderr, "programs of %s\n", s.Fabric)
		if f.Addon, err = a.programs.Build(ctx); err != nil {
			return f, err
		}
	}
	if a, ok := enforcers[s.Policy]; ok {
		fmt.Fprintf(os.Stderr, "programs of %s\n", s.Policy)
		if f.Policy, err = a.programs.Build(ctx); err != nil {
			return f, err
		}
	}
	type program struct {
		set    programs.Set
		folder *string
	}
	all := []program{
		{programs.Kubernetes, &f.Kubernetes},
		{programs.KubernetesNode, &f.Node},
		{programs.KubernetesTests, &f.Tests},
		{programs.KubernetesImages, &f.TestImages},
		{programs.Containerd, &f.Containerd},
		{programs.Runc, &f.Runc},
		{programs.CNI, &f.CNI},
		{programs.CoreDNS, &f.CoreDNS},
		{programs.Helm, &f.Helm},
	}
	if s.Task == metalLBTask {
		all = append(all, program{programs.MetalLB, &f.MetalLB})
	}
	for _, p := range all {
		fmt.Fprintf(os.Stderr, "programs of %s\n", p.set.Name)
		if *p.folder, err = p.set.Build(ctx); err != nil {
			return f, err
		}
	}
	return f, nil
}

// path is the search path with all of them.
func (f programFolders) path() string {
	path := ""
	for _, dir := range []string{f.Kubernetes, f.Node, f.Tests, f.Containerd, f.Runc} {
		path += dir + string(filepath.ListSeparator)
	}
	return path + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}
