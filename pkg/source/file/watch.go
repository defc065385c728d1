package file

import (
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"
)

// watcher watches one folder by its path, also after another folder has taken
// the place of the first.
type watcher struct {
	*fsnotify.Watcher
	dir string
	on  os.FileInfo // the folder watched; nil is none
}

func newWatcher(dir string) (*watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch manifests: %w; a larger fs.inotify.max_user_instances may help", err)
	}
	return &watcher{Watcher: w, dir: dir}, nil
}

// follow watches the folder that is at the path now.
func (w *watcher) follow() error {
	now, err := os.Stat(w.dir)
	if err != nil {
		w.on = nil
		return fmt.Errorf("watch manifests: %w", err)
	}
	if w.on != nil && os.SameFile(w.on, now) && len(w.WatchList()) > 0 {
		return nil
	}
	w.on = nil
	_ = w.Remove(w.dir) // fails when the watch ended together with its folder
	if err := w.Add(w.dir); err != nil {
		return fmt.Errorf("watch manifests in %s: %w; a larger fs.inotify.max_user_watches may help", w.dir, err)
	}
	w.on = now
	return nil
}
