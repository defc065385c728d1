package file

import (
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"
)

// watcher watches one folder by its path, also after another folder has taken
// the place of the first.
type watcher struct {
	dir string
	// fs is nil until the kernel has given an inotify instance.
	fs *fsnotify.Watcher
	on os.FileInfo // the folder watched; nil is none
}

// follow watches the folder that is at the path now.
func (w *watcher) follow() error {
	now, err := os.Stat(w.dir)
	if err != nil {
		w.on = nil
		return fmt.Errorf("watch manifests: %w", err)
	}
	if w.fs == nil {
		if w.fs, err = fsnotify.NewWatcher(); err != nil {
			return fmt.Errorf("watch manifests: %w: raise fs.inotify.max_user_instances", err)
		}
	}
	if w.on != nil && os.SameFile(w.on, now) && len(w.fs.WatchList()) > 0 {
		return nil
	}
	w.on = nil
	_ = w.fs.Remove(w.dir) // fails when the watch ended together with its folder
	if err := w.fs.Add(w.dir); err != nil {
		return fmt.Errorf("watch manifests in %s: %w: raise fs.inotify.max_user_watches", w.dir, err)
	}
	w.on = now
	return nil
}

// channels returns the channels of changes and of failures; nil channels, which
// tell nothing, while there is no watch.
func (w *watcher) channels() (<-chan fsnotify.Event, <-chan error) {
	if w.fs == nil {
		return nil, nil
	}
	return w.fs.Events, w.fs.Errors
}

func (w *watcher) close() {
	if w.fs != nil {
		w.fs.Close()
	}
}
