// Package image_test builds the image and looks into it. It needs root.
package image_test

import (
	"archive/tar"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// name is what the image of the test is called.
const name = "registry.example/beeline:v0.0.0-test"

// manifest is manifest.json of an archive for docker load.
type manifest []struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// config is an image's configuration.
type config struct {
	Architecture, OS string
	Config           struct {
		User       string
		Entrypoint []string
		Labels     map[string]string
	}
}

// TestImage builds the image for this machine: it has one layer, in it the two commands,
// which need no library, and texts. Both run from nothing but the image.
func TestImage(t *testing.T) {
	tier.Slow(t, "builds an image")
	lab.Need(t, "buildah", "make", "tar")
	out := t.TempDir()
	root, err := programs.Root()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), filepath.Join(root, "tools/image/build"), name, "v0.0.0-test", runtime.GOARCH)
	build.Env = append(os.Environ(), "IMAGE_DIR="+out)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	archive := filepath.Join(out, "beeline-"+runtime.GOARCH+".tar")
	var m manifest
	fromArchive(t, archive, "manifest.json", &m)
	if len(m) != 1 || len(m[0].Layers) != 1 || !slices.Equal(m[0].RepoTags, []string{name}) {
		t.Fatalf("the archive holds %+v", m)
	}
	var c config
	fromArchive(t, archive, m[0].Config, &c)
	checkConfig(t, c)

	files := t.TempDir()
	unpack(t, archive, m[0].Layers[0], files)
	checkFiles(t, files)
	for _, command := range [][]string{{"/usr/local/bin/beeline-agent", "--version"}, {"/usr/local/bin/beeline", "version"}} {
		text, err := exec.CommandContext(t.Context(), "chroot", append([]string{files}, command...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(text), "v0.0.0-test") {
			t.Errorf("%s: %v\n%s", command, err, text)
		}
	}
}

func checkConfig(t *testing.T, c config) {
	t.Helper()
	if c.OS != "linux" || c.Architecture != runtime.GOARCH || c.Config.User != "0:0" {
		t.Errorf("the image is for %s/%s and user %q", c.OS, c.Architecture, c.Config.User)
	}
	if !slices.Equal(c.Config.Entrypoint, []string{"/usr/local/bin/beeline-agent"}) {
		t.Errorf("the entry point is %q", c.Config.Entrypoint)
	}
	for label, want := range map[string]string{
		"version": "v0.0.0-test", "title": "Beeline", "source": "https://github.com/beeline-lb/beeline",
		"licenses": "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
	} {
		if got := c.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
}

// checkFiles looks at each file of the image.
func checkFiles(t *testing.T, root string) {
	t.Helper()
	var size int64
	var programs []string
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		inside := strings.TrimPrefix(path, root)
		if info.Mode()&0o111 != 0 {
			programs = append(programs, inside)
			checkStatic(t, path)
		} else if !strings.HasPrefix(inside, "/usr/share/doc/beeline/") {
			t.Errorf("the image holds %s", inside)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(programs, []string{"/usr/local/bin/beeline", "/usr/local/bin/beeline-agent"}) {
		t.Errorf("the image's programs are %q", programs)
	}
	if size >= 56<<20 {
		t.Errorf("the image's files have %d bytes, they must stay under 56 MiB", size)
	}
	var bom struct{ Components []struct{ PURL string } }
	text, err := os.ReadFile(filepath.Join(root, "usr/share/doc/beeline/sbom.cdx.json"))
	if err := errors.Join(err, json.Unmarshal(text, &bom)); err != nil || len(bom.Components) < 10 {
		t.Errorf("the bill of materials has %d components: %v", len(bom.Components), err)
	}
}

// checkStatic: a program asks for no loader and no library, for there are none.
func checkStatic(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s needs a dynamic loader", path)
		}
	}
}

// fromArchive reads a JSON file of a tar archive.
func fromArchive(t *testing.T, archive, file string, into any) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", file, archive, err)
		}
		if header.Name != file {
			continue
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, json.Unmarshal(text, into)); err != nil {
			t.Fatalf("%s in %s: %v", file, archive, err)
		}
		return
	}
}

// unpack unpacks a layer.
func unpack(t *testing.T, archive, layer, into string) {
	t.Helper()
	script := `tar -xOf "$1" "$2" | tar -xf - -C "$3"`
	if text, err := exec.CommandContext(t.Context(), "sh", "-ec", script, "sh", archive, layer, into).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}
