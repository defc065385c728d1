package main

import (
	"cmp"
	"debug/buildinfo"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// own is the license of Beeline itself, the BPF programs in it included.
const own = "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"

// program is a Go binary and what the compiler noted in it.
type program struct {
	name string
	info *buildinfo.BuildInfo
}

// deps returns the modules that the program was made from, its own not counted and
// Go's standard library as "stdlib", which is what databases of faults call it.
func (p program) deps() []debug.Module {
	deps := []debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(p.info.GoVersion, "go")}}
	for _, m := range p.info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		deps = append(deps, debug.Module{Path: m.Path, Version: m.Version})
	}
	return deps
}

// modules returns those of all programs, each once, sorted by path.
func modules(programs []program) []debug.Module {
	all := make(map[debug.Module]bool)
	for _, p := range programs {
		for _, m := range p.deps() {
			all[m] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b debug.Module) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Version, b.Version))
	})
}

func purl(m debug.Module) string { return "pkg:golang/" + m.Path + "@" + m.Version }

// bill returns the bill of materials of an image with the programs. It holds no
// time and no random name: the same programs have the same bill.
func bill(version string, programs []program) *cdx.BOM {
	bom := cdx.NewBOM()
	image := cdx.Component{
		BOMRef: "beeline", Type: cdx.ComponentTypeContainer, Name: "beeline", Version: version,
		Licenses: &cdx.Licenses{{Expression: own}},
	}
	bom.Metadata = &cdx.Metadata{Component: &image}
	var components []cdx.Component
	var parts []string
	var dependencies []cdx.Dependency
	for _, p := range programs {
		ref := "program:" + p.name
		parts = append(parts, ref)
		components = append(components, cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: p.name, Version: version,
			Licenses: &cdx.Licenses{{Expression: own}},
		})
		var refs []string
		for _, m := range p.deps() {
			refs = append(refs, purl(m))
		}
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &refs})
	}
	for _, m := range modules(programs) {
		components = append(components, cdx.Component{
			BOMRef: purl(m), Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl(m),
		})
	}
	dependencies = append(dependencies, cdx.Dependency{Ref: image.BOMRef, Dependencies: &parts})
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom
}

func writeBOM(path, version string, programs []program) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bill(version, programs)); err != nil {
		return err
	}
	return f.Close()
}
