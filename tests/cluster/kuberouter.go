package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/beeline-lb/beeline/tests/programs"
)

const kubeRouterImage = "docker.io/cloudnativelabs/kube-router:local"

// kubeRouterAddon routes packets of pods, and restricts them by NetworkPolicy.
var kubeRouterAddon = addon{
	manifest:  "kube-router.yaml",
	values:    map[string]any{"Image": kubeRouterImage, "ServiceNetworks": strings.Split(serviceCIDRs, ",")},
	namespace: "kube-system",
	daemonSet: "kube-router",
	programs:  programs.KubeRouter,
	image: func(_ context.Context, cache, rootfs string, f programFolders) (string, error) {
		return archiveImages(cache, "kube-router", rootfs, []recipe{{
			tags:       []string{kubeRouterImage},
			debian:     true,
			files:      map[string]string{"usr/local/bin/kube-router": filepath.Join(f.Addon, "kube-router")},
			entrypoint: []string{"/usr/local/bin/kube-router"},
		}})
	},
}
