package datapath

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// Held are the pinned maps of an agent that has ended, with its place taken so that
// no other one starts.
type Held struct {
	Maps *bpfmap.Maps
	lock *lock
}

// Hold takes the place of an agent on the BPF file system and opens its maps. The
// error is a [RunningError] while one runs, and [os.ErrNotExist] where no program is left of one.
func Hold(bpffs string) (*Held, error) {
	if nothingPinned(bpffs) {
		return nil, os.ErrNotExist
	}
	if err := checkBPFFS(bpffs); err != nil {
		return nil, err
	}
	l, err := takeLock(bpffs)
	if err != nil {
		return nil, err
	}
	maps, err := bpfmap.Open(Dir(bpffs))
	// A clean-up that was killed has left a part of the maps, and none of the links, which go first.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, bpfmap.ErrOtherVersion) && !anyLink(Dir(bpffs)) {
		return nil, errors.Join(os.ErrNotExist, l.release())
	}
	if err != nil {
		return nil, errors.Join(err, l.release())
	}
	return &Held{maps, l}, nil
}

// anyLink reports whether a link is pinned in a folder.
func anyLink(dir string) bool {
	links, err := filepath.Glob(filepath.Join(dir, linkPrefix+"*"))
	return err != nil || len(links) > 0
}

// Close releases the lock. Pinned programs go on.
func (h *Held) Close() error { return errors.Join(h.Maps.Close(), h.lock.release()) }
