package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// folder holds manifests.
type folder interface {
	// list returns the names of the manifests and how their files look. It fails only when
	// the folder cannot be listed.
	list() (map[string]look, error)
	// read returns what a manifest holds. The error is errNoManifest when it is none.
	read(name string) ([]byte, error)
	// writing reports whether a manifest is being written, as far as that can be told.
	writing(name string) bool
}

// look tells whether a file has changed without reading it. Zero is that it cannot tell.
type look struct {
	dev, ino          uint64
	size              int64
	modified, changed unix.Timespec
}

// fileClock is how long after a change of a file another one may leave its times the same: they
// are as fine as the clock of the file system, 2 s at worst.
const fileClock = 2 * time.Second

// directory is a folder on disk. Its manifests are directly in it; symbolic links are followed.
type directory struct {
	path  string
	clock time.Duration // fileClock but in tests
}

func (d *directory) list() (map[string]look, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	found := make(map[string]look, len(entries))
	for _, e := range entries {
		if isManifest(e.Name()) {
			found[e.Name()] = d.look(e.Name())
		}
	}
	return found, nil
}

func (d *directory) look(name string) look {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(d.path, name), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return look{}
	}
	if time.Since(time.Unix(st.Ctim.Unix())) < d.clock {
		return look{}
	}
	return look{dev: st.Dev, ino: st.Ino, size: st.Size, modified: st.Mtim, changed: st.Ctim}
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

// read follows symbolic links. It does not open what is no regular file,
// since reading a pipe could block for ever.
func (d *directory) read(name string) ([]byte, error) {
	path := filepath.Join(d.path, name)
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

// longestPause is how long a file that is open for writing may stay as it is before it counts as written.
const longestPause = 10 * time.Second

// writing reports whether a process has the file open for writing: the kernel gives no lease to read then. On file
// systems without leases (NFS), and without CAP_LEASE for files of others, it cannot be told. To open a pipe would
// wait for who writes to it.
func (d *directory) writing(name string) bool {
	file, err := os.OpenFile(filepath.Join(d.path, name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) > longestPause {
		return false
	}
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN)
}
