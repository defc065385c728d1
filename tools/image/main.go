// Command image writes what belongs into the image beside the programs: a software
// bill of materials and the licenses of all that is compiled in.
//
//	go run ./tools/image -version v1.2.3 -o ROOT/usr/share/doc/beeline ROOT/usr/local/bin/*
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	version := flag.String("version", "devel", "version of Beeline")
	out := flag.String("o", "", "folder to write to")
	flag.Parse()
	if err := run(*version, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(version, out string, paths []string) error {
	if out == "" || len(paths) == 0 {
		return errors.New("give -o FOLDER and the programs")
	}
	var programs []program
	for _, path := range paths {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		programs = append(programs, program{name: filepath.Base(path), info: info})
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := writeBOM(filepath.Join(out, "sbom.cdx.json"), version, programs); err != nil {
		return err
	}
	return writeLicenses(filepath.Join(out, "licenses"), modules(programs))
}
