package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// image is one to be put into an archive in the form of "docker save".
type image struct {
	tags       []string
	layers     []layer
	entrypoint []string
	cmd        []string
}

// layer is a tar file and its digest.
type layer struct {
	path   string
	digest string
}

// archiveEntry is an image in manifest.json.
type archiveEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// imageConfig is what of an image's configuration is needed to run it.
type imageConfig struct {
	Architecture string      `json:"architecture"`
	OS           string      `json:"os"`
	Created      time.Time   `json:"created"`
	Config       runConfig   `json:"config"`
	RootFS       imageRootFS `json:"rootfs"`
}

type runConfig struct {
	Env        []string
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	WorkingDir string
}

type imageRootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// writeArchive writes the images to path, layers that several have once.
func writeArchive(path string, images []image) error {
	return writeTar(path, func(w *tar.Writer) error {
		written := make(map[string]bool)
		var manifest []archiveEntry
		for _, i := range images {
			entry := archiveEntry{RepoTags: i.tags}
			config := imageConfig{
				Architecture: runtime.GOARCH,
				OS:           "linux",
				Created:      time.Unix(0, 0).UTC(),
				Config: runConfig{
					Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
					Entrypoint: i.entrypoint,
					Cmd:        i.cmd,
					WorkingDir: "/",
				},
				RootFS: imageRootFS{Type: "layers"},
			}
			for _, l := range i.layers {
				name := l.digest + ".tar"
				entry.Layers = append(entry.Layers, name)
				config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, "sha256:"+l.digest)
				if written[name] {
					continue
				}
				written[name] = true
				if err := addFile(w, name, l.path, 0o644); err != nil {
					return err
				}
			}
			b, err := json.Marshal(config)
			if err != nil {
				return err
			}
			entry.Config = fmt.Sprintf("%x.json", sha256.Sum256(b))
			manifest = append(manifest, entry)
			if err := addBytes(w, entry.Config, b); err != nil {
				return err
			}
		}
		b, err := json.Marshal(manifest)
		if err != nil {
			return err
		}
		return addBytes(w, "manifest.json", b)
	})
}

// newLayer writes a layer to path with what fill adds.
func newLayer(path string, fill func(*tar.Writer) error) (layer, error) {
	if err := writeTar(path, fill); err != nil {
		return layer{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return layer{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return layer{}, err
	}
	return layer{path: path, digest: fmt.Sprintf("%x", h.Sum(nil))}, nil
}

func writeTar(path string, fill func(*tar.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	if err := fill(w); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := w.Close(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// addTree adds a folder's files, folders and links with their owners and modes.
func addTree(w *tar.Writer, root string) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if !info.IsDir() && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
			return nil // devices, which the runtime makes
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		header.Name, header.Format = name, tar.FormatPAX
		header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
		header.Uname, header.Gname = "", ""
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		return copyTo(w, path)
	})
}

// addFile adds the file at path as name, owned by root.
func addFile(w *tar.Writer, name, path string, mode int64) error {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return err
	}
	header := &tar.Header{Name: name, Mode: mode, Size: stat.Size, Typeflag: tar.TypeReg}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	return copyTo(w, path)
}

func addBytes(w *tar.Writer, name string, b []byte) error {
	header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(b)), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

func copyTo(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
