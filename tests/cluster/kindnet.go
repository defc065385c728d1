package main

import (
	"context"
	"path/filepath"

	"github.com/beeline-lb/beeline/tests/programs"
)

const kindnetImage = "docker.io/kindest/kindnetd:local"

// kindnetAddon routes packets of pods, writes the configuration of the plugins that the
// nodes have, and restricts pods by NetworkPolicy.
var kindnetAddon = addon{
	manifest:  "kindnet.yaml",
	values:    map[string]any{"Image": kindnetImage},
	namespace: "kube-system",
	daemonSet: "kindnet",
	programs:  programs.Kindnet,
	image: func(_ context.Context, cache, rootfs string, f programFolders) (string, error) {
		return archiveImages(cache, "kindnet", rootfs, []recipe{{
			tags:       []string{kindnetImage},
			debian:     true,
			files:      map[string]string{"bin/kindnetd": filepath.Join(f.Addon, "kindnetd")},
			entrypoint: []string{"/bin/kindnetd"},
		}})
	},
}
