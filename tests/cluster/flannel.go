package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/beeline-lb/beeline/tests/programs"
)

// flannelImage has flanneld and the plugin of tests/cluster/flannel.
const flannelImage = "ghcr.io/flannel-io/flannel:local"

func flannelAddon(backend string) addon {
	largest6 := 0
	if backend == "vxlan" {
		largest6 = 1382 // pods are told 1,450 bytes, flannel-v6.1 takes 1,430
	}
	return addon{
		largest6:  largest6,
		manifest:  "flannel.yaml",
		values:    map[string]any{"Image": flannelImage, "Backend": backend},
		namespace: "kube-flannel",
		daemonSet: "kube-flannel-ds",
		programs:  programs.Flannel,
		image:     buildFlannel,
	}
}

// buildFlannel returns an archive with flannel's image.
func buildFlannel(ctx context.Context, cache, rootfs string, f programFolders) (string, error) {
	plugin, err := buildFlannelPlugin(ctx, filepath.Join(cache, "flannel-plugin"))
	if err != nil {
		return "", err
	}
	return archiveImages(cache, "flannel", rootfs, []recipe{{
		tags:   []string{flannelImage},
		debian: true,
		files: map[string]string{
			"flannel":              plugin,
			"opt/bin/flanneld":     filepath.Join(f.Addon, "flanneld"),
			"opt/bin/install-conf": filepath.Join(f.Addon, "install-conf"),
		},
		entrypoint: []string{"/opt/bin/flanneld"},
	}})
}

// buildFlannelPlugin builds the plugin in dir and returns its path, which has the
// content's hash in it.
func buildFlannelPlugin(ctx context.Context, dir string) (string, error) {
	built := filepath.Join(dir, "flannel")
	if err := errors.Join(os.RemoveAll(dir), buildStatic(ctx, built, "./tests/cluster/flannel")); err != nil {
		return "", err
	}
	b, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(b)
	plugin := fmt.Sprintf("%s-%x", built, hash[:6])
	return plugin, os.Rename(built, plugin)
}
