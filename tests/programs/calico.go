package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// calicoC is the folder of a checkout of Calico with what is written in C. Calico's make
// clones libbpf into it, in the version that it wants; that of a distribution may lack
// functions.
const calicoC = "felix/bpf-gpl"

// buildLibbpf builds the libbpf of a checkout of Calico and returns the environment that
// has programs linked with it. It takes make, and libelf and zlib with their headers.
func buildLibbpf(ctx context.Context, checkout string) ([]string, error) {
	sources := filepath.Join(checkout, calicoC, "libbpf")
	if _, err := os.Stat(filepath.Join(sources, "src")); err != nil {
		return nil, fmt.Errorf("%w of libbpf, which Calico's make clones: %w", ErrNoCheckout, err)
	}
	version, err := described(ctx, sources)
	if err != nil {
		return nil, fmt.Errorf("version of libbpf: %w", err)
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	dir, err := cached(root, "libbpf", version+"-"+runtime.GOARCH, func(path string) error {
		building := path + ".building"
		if err := os.RemoveAll(building); err != nil {
			return err
		}
		if err := run(exec.CommandContext(ctx, "make", "-C", filepath.Join(sources, "src"), "BUILD_STATIC_ONLY=1", "OBJDIR="+building)); err != nil {
			return err
		}
		return os.Rename(building, path)
	})
	return []string{"CGO_LDFLAGS=-L" + dir}, err
}

// CalicoMaps returns the BPF object with the maps of Calico's programs, as the checkout has
// them. Felix opens it where it serves without BPF, too: to remove what it attached with BPF.
// It takes make and clang-19, and is built outside of the checkout.
func CalicoMaps(ctx context.Context) (string, error) {
	sources, err := Calico.File(calicoC)
	if err != nil {
		return "", err
	}
	version, err := described(ctx, sources)
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", sources, err)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return cached(root, "calico-maps", version+".o", func(path string) error {
		tmp, err := os.MkdirTemp("", "beeline-calico-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		const object = "bin/common_map_stub.o"
		for _, args := range [][]string{
			{"cp", "--recursive", sources + "/.", tmp},
			{"make", "-C", tmp, "CC=clang-19", object},
			{"mv", filepath.Join(tmp, object), path},
		} {
			if err := run(exec.CommandContext(ctx, args[0], args[1:]...)); err != nil {
				return err
			}
		}
		return nil
	})
}
