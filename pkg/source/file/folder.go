package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// reading is a file of the folder: its bytes, or why there are none.
type reading struct {
	raw []byte
	err error
}

// readFolder reads the manifests directly in dir, by name. A file that cannot be
// read is there, with its error; only a folder that cannot be listed is an error
// of the whole.
func readFolder(dir string) (map[string]reading, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	found := map[string]reading{}
	for _, e := range entries {
		if !isManifest(e.Name()) {
			continue
		}
		raw, err := readManifest(filepath.Join(dir, e.Name()))
		if !errors.Is(err, errNoManifest) {
			found[e.Name()] = reading{raw, err}
		}
	}
	return found, nil
}

// isManifest reports whether a name is that of a manifest. Hidden files are
// left out: editors and the kubelet keep theirs under such names.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// errNoManifest says that a path is a folder or was deleted after it was listed.
var errNoManifest = errors.New("no manifest")

// readManifest follows symbolic links. It does not open what is no regular file,
// since reading a pipe could block for ever.
func readManifest(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, errNoManifest
		}
	}
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, errNoManifest
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file: put the manifest itself here or a link to it")
	}
	return os.ReadFile(path)
}
