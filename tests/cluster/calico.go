package main

import (
	"context"
	"path/filepath"

	"github.com/beeline-lb/beeline/tests/programs"
)

const calicoImage = "quay.io/calico/node:local"

// calicoAddon returns Calico with its mode of VXLAN, which is one of "Always" and
// "CrossSubnet", and felix's nftables mode, one of "Enabled" and "Disabled".
func calicoAddon(vxlan, nftables string) addon {
	return addon{
		manifest:       "calico.yaml",
		values:         map[string]any{"Image": calicoImage, "VXLAN": vxlan, "NFTables": nftables},
		namespace:      "kube-system",
		daemonSet:      "calico-node",
		programs:       programs.Calico,
		definitions:    "libcalico-go/config/crd",
		assignsAnyNode: true,
		image:          buildCalico,
	}
}

// buildCalico returns an archive with one image, in which are the programs of Calico's
// images of the node and of the CNI plugins.
func buildCalico(ctx context.Context, cache, rootfs string, f programFolders) (string, error) {
	maps, err := programs.CalicoMaps(ctx)
	if err != nil {
		return "", err
	}
	files := map[string]string{
		"usr/local/bin/calico-node":            filepath.Join(f.Addon, "calico-node"),
		"usr/local/bin/mountns":                filepath.Join(f.Addon, "mountns"),
		"usr/local/bin/install":                filepath.Join(f.Addon, "install"),
		"usr/lib/calico/bpf/common_map_stub.o": maps,
		// One program, which does what its name says.
		"opt/cni/bin/calico":      filepath.Join(f.Addon, "calico"),
		"opt/cni/bin/calico-ipam": filepath.Join(f.Addon, "calico"),
	}
	return archiveImages(cache, "calico", rootfs, []recipe{{
		tags: []string{calicoImage}, debian: true, files: files, entrypoint: []string{"calico-node"},
	}})
}
