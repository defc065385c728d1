// Package inspect reads the state of this node's datapath from the pinned maps
// alone: the agent need not run.
//
// Its types are the JSON and YAML that the beeline command prints. Fields are
// added, never renamed or given another meaning. Lists are ordered by namespace,
// Service name, port and family, and are never null. There are many names because each object
// in that output is a type.
package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
)

// ErrNoDatapath says that nothing is pinned where the maps were looked for.
var ErrNoDatapath = errors.New("no datapath")

// Datapath are the maps that an agent, running or not, has pinned.
type Datapath struct {
	bpffs string
	maps  *bpfmap.Maps
}

// Open opens the maps that are pinned below bpffs, those of another version, too; see
// [Datapath.Unread]. The error is [ErrNoDatapath]
// when there are none and [fs.ErrPermission] when the caller may not read them;
// both say what to do.
func Open(bpffs string) (*Datapath, error) {
	dir := datapath.Dir(bpffs)
	maps, err := bpfmap.OpenReadable(dir)
	switch {
	case err == nil:
		return &Datapath{bpffs, maps}, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("reading the maps in %s needs root or CAP_BPF, CAP_SYS_ADMIN and access to the directory (use sudo): %w", dir, err)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open the maps in %s: %w", dir, err)
	}
	if other := otherSchemas(dir); len(other) > 0 {
		return nil, fmt.Errorf("%w in %s, but one of another version in %s: use the beeline command of the agent's version",
			ErrNoDatapath, dir, other[0])
	}
	return nil, fmt.Errorf("%w in %s: start beeline-agent on this node, or name the agent's bpffs",
		ErrNoDatapath, dir)
}

// Read opens the maps that are pinned below bpffs for fn. Its errors are those of [Open] and of fn.
func Read[T any](bpffs string, fn func(*Datapath) (T, error)) (T, error) {
	d, err := Open(bpffs)
	if err != nil {
		return *new(T), err
	}
	result, err := fn(d)
	return result, errors.Join(err, d.Close())
}

// otherSchemas returns the directories beside dir that hold maps.
func otherSchemas(dir string) []string {
	pins, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "v*", "bl_service")) // the pattern is well formed
	var dirs []string
	for _, pin := range pins {
		if found := filepath.Dir(pin); found != dir {
			dirs = append(dirs, found)
		}
	}
	return dirs
}

// Close releases the maps.
func (d *Datapath) Close() error { return d.maps.Close() }
