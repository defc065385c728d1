package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/tests/programs"
)

// Images that are not upstream's tests'.
const (
	pauseImage     = "registry.k8s.io/pause:3.10.2"
	coreDNSImage   = "registry.k8s.io/coredns/coredns:local"
	kubeProxyImage = "registry.k8s.io/kube-proxy:local"
)

// recipe says how an image is made.
type recipe struct {
	tags []string
	// debian is set when Debian's files are in it.
	debian bool
	// files are added: path in the image → file here.
	files           map[string]string
	entrypoint, cmd []string
}

// testImages are those of upstream's tests, by the last part of the name. They
// have the programs that the tests of the network call, not all that upstream's
// have; nginx is wanted by name only.
func testImages(f programFolders, sources, pause string) map[string]recipe {
	agnhost := map[string]string{
		"agnhost":   filepath.Join(f.Tests, "agnhost"),
		"agnhost-2": filepath.Join(f.Tests, "agnhost"),
		"coredns":   filepath.Join(f.CoreDNS, "coredns"),
		// Of its server for TLS.
		"localhost.crt": filepath.Join(sources, "test/images/agnhost/porter/localhost.crt"),
		"localhost.key": filepath.Join(sources, "test/images/agnhost/porter/localhost.key"),
	}
	return map[string]recipe{
		"agnhost":             {debian: true, files: agnhost, entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}},
		"distroless-iptables": {debian: true, cmd: []string{"sh"}},
		"busybox":             {debian: true, cmd: []string{"sh"}},
		"glibc-dns-testing":   {debian: true, cmd: []string{"sleep", "infinity"}},
		"nginx":               {debian: true, files: agnhost, entrypoint: []string{"/agnhost", "netexec", "--http-port=80"}},
		"regression-issue-74839": {
			files:      map[string]string{"boom": filepath.Join(f.TestImages, "regression-issue-74839")},
			entrypoint: []string{"/boom"},
		},
		"pause": {files: map[string]string{"pause": pause}, entrypoint: []string{"/pause"}},
	}
}

// buildArchives returns the archives of all images of a cluster but Beeline's.
func buildArchives(ctx context.Context, cache string, s *settings) ([]string, error) {
	images, err := buildImages(ctx, cache, s.Rootfs, s.Programs)
	if err != nil {
		return nil, err
	}
	load, err := buildLoad(ctx, cache)
	if err != nil {
		return nil, err
	}
	archives := []string{images, load}
	for _, a := range []addon{addons[s.Fabric], enforcers[s.Policy]} {
		if a.image == nil {
			continue // there is none
		}
		image, err := a.image(ctx, cache, s.Rootfs, s.Programs)
		if err != nil {
			return nil, err
		}
		archives = append(archives, image)
	}
	return archives, nil
}

// buildImages returns an archive with the images that every cluster has, made when
// what goes into it has changed.
func buildImages(ctx context.Context, cache, rootfs string, f programFolders) (string, error) {
	pause := filepath.Join(cache, "pause")
	if err := buildStatic(ctx, pause, "./tests/cluster/pause"); err != nil {
		return "", err
	}
	recipes, err := listRecipes(ctx, f, pause)
	if err != nil {
		return "", err
	}
	return archiveImages(cache, "images", rootfs, recipes)
}

// archiveImages returns the archive of that name, made when the recipes have changed.
// Of a file that has changed, the path must have changed.
func archiveImages(cache, name, rootfs string, recipes []recipe) (string, error) {
	key := sha256.Sum256(fmt.Appendf(nil, "%s %+v", rootfs, recipes))
	archive := filepath.Join(cache, fmt.Sprintf("%s-%x.tar", name, key[:6]))
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	fmt.Fprintln(os.Stderr, name, "of the cluster")
	tmp := filepath.Join(cache, name+".building")
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	images, err := makeImages(tmp, rootfs, recipes)
	if err != nil {
		return "", err
	}
	if err := writeArchive(filepath.Join(tmp, "images.tar"), images); err != nil {
		return "", err
	}
	old, err := filepath.Glob(filepath.Join(cache, name+"-*.tar"))
	if err != nil {
		return "", err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return "", err
		}
	}
	return archive, os.Rename(filepath.Join(tmp, "images.tar"), archive)
}

// listRecipes returns the recipes of all images, with the tags that the suite asks
// for.
func listRecipes(ctx context.Context, f programFolders, pause string) ([]recipe, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(f.Tests, "e2e.test"), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("list the images of the suite: %w", err)
	}
	sources, err := programs.Kubernetes.Sources(ctx, "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	known := testImages(f, sources, pause)
	recipes := []recipe{
		{tags: []string{coreDNSImage}, files: map[string]string{"coredns": filepath.Join(f.CoreDNS, "coredns")}, entrypoint: []string{"/coredns"}},
		{tags: []string{kubeProxyImage}, debian: true, files: map[string]string{"kube-proxy": filepath.Join(f.Kubernetes, "kube-proxy")}, entrypoint: []string{"/kube-proxy"}},
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		tag := strings.TrimSpace(lines.Text())
		name, _, _ := strings.Cut(path.Base(tag), ":")
		if r, ok := known[name]; ok && strings.HasPrefix(tag, "registry.k8s.io/") {
			r.tags = []string{tag}
			recipes = append(recipes, r)
		}
	}
	// The suite lists them in any order.
	slices.SortFunc(recipes, func(x, y recipe) int { return strings.Compare(x.tags[0], y.tags[0]) })
	return recipes, nil
}

func makeImages(tmp, rootfs string, recipes []recipe) ([]image, error) {
	debian, err := newLayer(filepath.Join(tmp, "debian.tar"), func(w *tar.Writer) error { return addTree(w, rootfs) })
	if err != nil {
		return nil, err
	}
	var images []image
	for i, r := range recipes {
		made := image{tags: r.tags, entrypoint: r.entrypoint, cmd: r.cmd}
		if r.debian {
			made.layers = append(made.layers, debian)
		}
		if len(r.files) > 0 {
			l, err := newLayer(filepath.Join(tmp, fmt.Sprintf("%d.tar", i)), func(w *tar.Writer) error {
				return addFiles(w, r.files)
			})
			if err != nil {
				return nil, err
			}
			made.layers = append(made.layers, l)
		}
		images = append(images, made)
	}
	return images, nil
}

// addFiles adds programs, a file that is there under another name as a link.
func addFiles(w *tar.Writer, files map[string]string) error {
	have := make(map[string]string) // by file here
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if first, ok := have[files[name]]; ok {
			if err := w.WriteHeader(&tar.Header{Name: name, Linkname: "/" + first, Typeflag: tar.TypeSymlink, Mode: 0o777}); err != nil {
				return err
			}
			continue
		}
		have[files[name]] = name
		if err := addFile(w, name, files[name], 0o755); err != nil {
			return err
		}
	}
	return nil
}

// buildStatic builds a program of this repository.
func buildStatic(ctx context.Context, output, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", output, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// loadImage is the image of the program load.
const loadImage = "beeline.io/load:local"

// buildLoad returns an archive with the image of the program load.
func buildLoad(ctx context.Context, cache string) (string, error) {
	dir := filepath.Join(cache, "load")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "load")
	if err := buildStatic(ctx, binary, "./tests/cluster/load"); err != nil {
		return "", err
	}
	only, err := newLayer(filepath.Join(dir, "layer.tar"), func(w *tar.Writer) error {
		return addFile(w, "load", binary, 0o755)
	})
	if err != nil {
		return "", err
	}
	// Another cluster may be reading the last one.
	archive, tmp := filepath.Join(dir, "image.tar"), filepath.Join(dir, "image.building")
	err = writeArchive(tmp, []image{{tags: []string{loadImage}, layers: []layer{only}, entrypoint: []string{"/load"}}})
	if err != nil {
		return "", err
	}
	return archive, os.Rename(tmp, archive)
}
