package main

import (
	"debug/elf"
	"fmt"
	"path"
	"path/filepath"
)

// programsPackages are the packages of each suite that have the programs.
var programsPackages = []string{"xdp-tools", "iptables", "ipset"}

// programs can be run by tests.
var programs = []string{
	"xdp-loader", "xdp-filter", "ipset",
	"iptables-nft", "iptables-nft-save", "iptables-nft-restore", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-nft-restore",
}

// programFiles are what the programs read, by patterns below the folder of libraries.
var programFiles = []string{"bpf/*.o", "xtables/*.so"}

// find returns the path of an unpacked file, whether its release of Debian has the folder
// below /usr or not. The error wraps [fs.ErrNotExist] when there is none.
func (i *image) find(dir, name string) (string, error) {
	return onlyMatch(filepath.Join(i.root, dir, name), filepath.Join(i.root, "usr", dir, name))
}

// addPrograms adds the programs and the files that they need.
func addPrograms(archive *cpioWriter, img *image) error {
	added := make(map[string]bool)
	for _, name := range programs {
		if err := addProgram(archive, img, "sbin", name, added); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
	}
	source, err := img.find(img.arch.libraries, img.arch.loader)
	if err != nil {
		return err
	}
	if err := addFile(archive, img.arch.loaderPath, source); err != nil {
		return err
	}
	libraries := filepath.Join(img.root, "usr", img.arch.libraries)
	for _, pattern := range programFiles {
		files, err := filepath.Glob(filepath.Join(libraries, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			name := path.Join("/usr", img.arch.libraries, path.Dir(pattern), filepath.Base(file))
			if err := addFile(archive, name, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// addProgram adds a program or a library, and the libraries that it needs, unless they have
// been added.
func addProgram(archive *cpioWriter, img *image, dir, name string, added map[string]bool) error {
	if added[name] {
		return nil
	}
	added[name] = true
	source, err := img.find(dir, name)
	if err != nil {
		return err
	}
	if err := addFile(archive, path.Join("/usr", dir, name), source); err != nil {
		return err
	}
	file, err := elf.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, library := range needed {
		if err := addProgram(archive, img, img.arch.libraries, library, added); err != nil {
			return err
		}
	}
	return nil
}
