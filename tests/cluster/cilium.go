package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/beeline-lb/beeline/tests/programs"
)

const ciliumImage = "quay.io/cilium/cilium:local"

// ciliumAddon connects pods by VXLAN and restricts them by NetworkPolicy. It serves no Services.
var ciliumAddon = addon{
	manifest:  "cilium.yaml",
	values:    map[string]any{"Image": ciliumImage},
	namespace: "kube-system",
	daemonSet: "cilium",
	programs:  programs.Cilium,
	image:     buildCilium,
}

// buildCilium returns an archive with one image, in which are the programs of Cilium's images
// of the agent and of the operator.
func buildCilium(ctx context.Context, cache, rootfs string, f programFolders) (string, error) {
	files := map[string]string{"opt/cni/bin/cilium-cni": filepath.Join(f.Addon, "cilium-cni")}
	for _, name := range []string{"cilium-agent", "cilium-operator", "cilium-health-responder"} {
		files["usr/bin/"+name] = filepath.Join(f.Addon, name)
	}
	if err := addCiliumSources(ctx, files); err != nil {
		return "", err
	}
	if err := addClang(ctx, rootfs, files); err != nil {
		return "", err
	}
	return archiveImages(cache, "cilium", rootfs, []recipe{{
		tags: []string{ciliumImage}, debian: true, files: files, entrypoint: []string{"cilium-agent"},
	}})
}

// addCiliumSources adds the sources of the programs that the agent compiles.
func addCiliumSources(ctx context.Context, files map[string]string) error {
	module, err := programs.Cilium.Sources(ctx, "github.com/cilium/cilium")
	if err != nil {
		return err
	}
	sources := os.DirFS(filepath.Join(module, "bpf"))
	return fs.WalkDir(sources, ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "tests" {
			return fs.SkipDir
		}
		if ext := path.Ext(name); err == nil && (ext == ".c" || ext == ".h") {
			files["var/lib/cilium/bpf/"+name] = filepath.Join(module, "bpf", name)
		}
		return err
	})
}

// addClang adds this machine's clang, and of the libraries that it needs those that Debian's
// files in the image lack.
func addClang(ctx context.Context, rootfs string, files map[string]string) error {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		return fmt.Errorf("cilium compiles its programs: %w", err)
	}
	if clang, err = filepath.EvalSymlinks(clang); err != nil {
		return err
	}
	files["usr/bin/clang"] = clang
	out, err := exec.CommandContext(ctx, "ldd", clang).Output()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", clang, err)
	}
	for line := range strings.Lines(string(out)) {
		_, found, ok := strings.Cut(line, " => ")
		library, _, _ := strings.Cut(found, " ")
		if _, err := os.Stat(filepath.Join(rootfs, library)); ok && err != nil {
			files["usr/lib/"+filepath.Base(library)] = library
		}
	}
	return nil
}
