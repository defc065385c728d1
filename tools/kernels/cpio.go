package main

import (
	"fmt"
	"io"
	"path"
)

// File types and modes of cpio entries, as in stat(2).
const (
	cpioFile       = 0o100755
	cpioDir        = 0o040755
	cpioCharDevice = 0o020600
)

// cpioWriter writes the "new ASCII" archive format of an initramfs: the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst. It keeps the first
// error, which close returns.
type cpioWriter struct {
	out   io.Writer
	inode int
	dirs  map[string]bool
	err   error
}

func newCPIOWriter(out io.Writer) *cpioWriter {
	return &cpioWriter{out: out, dirs: map[string]bool{".": true, "/": true}}
}

// dir adds a folder and its parents, once.
func (w *cpioWriter) dir(name string) {
	if w.dirs[name] {
		return
	}
	w.dir(path.Dir(name))
	w.dirs[name] = true
	w.entry(name, cpioDir, 0, 0, nil)
}

// file adds an executable file and the folders it is in.
func (w *cpioWriter) file(name string, data []byte) {
	w.dir(path.Dir(name))
	w.entry(name, cpioFile, 0, 0, data)
}

// device adds a character device.
func (w *cpioWriter) device(name string, major, minor int) {
	w.dir(path.Dir(name))
	w.entry(name, cpioCharDevice, major, minor, nil)
}

// close ends the archive.
func (w *cpioWriter) close() error {
	w.entry("TRAILER!!!", 0, 0, 0, nil)
	return w.err
}

func (w *cpioWriter) entry(name string, mode, major, minor int, data []byte) {
	const (
		headerSize     = 110
		owner, links   = 0, 1
		mtime, devices = 0, 0
		checksum       = 0
	)
	w.inode++
	header := "070701"
	for _, field := range []int{
		w.inode, mode, owner, owner, links, mtime, len(data),
		devices, devices, major, minor, len(name) + 1, checksum,
	} {
		header += fmt.Sprintf("%08X", field)
	}
	w.write([]byte(header + name + "\x00"))
	w.pad(headerSize + len(name) + 1)
	w.write(data)
	w.pad(len(data))
}

// pad fills up what has size bytes to a multiple of four.
func (w *cpioWriter) pad(size int) {
	w.write(make([]byte, -size&3))
}

func (w *cpioWriter) write(p []byte) {
	if w.err == nil {
		_, w.err = w.out.Write(p)
	}
}
