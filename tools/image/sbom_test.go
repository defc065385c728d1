package main

import (
	"debug/buildinfo"
	"runtime/debug"
	"testing"
)

// made returns a program made from the modules, path and version in turn.
func made(name string, deps ...string) program {
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.0"}
	for i := 0; i < len(deps); i += 2 {
		info.Deps = append(info.Deps, &debug.Module{Path: deps[i], Version: deps[i+1]})
	}
	return program{name: name, info: info}
}

// TestBillNamesEachModuleOnce makes a bill of two programs that share a module; what
// a component is said to depend on must be in the bill.
func TestBillNamesEachModuleOnce(t *testing.T) {
	a := made("a", "example.org/shared", "v1.0.0", "example.org/other", "v2.0.0")
	b := made("b", "example.org/shared", "v1.0.0")
	bom := bill("v9", []program{a, b})

	times := map[string]int{bom.Metadata.Component.BOMRef: 1}
	for _, c := range *bom.Components {
		times[c.BOMRef]++
	}
	for _, ref := range []string{
		"pkg:golang/stdlib@1.26.0", "pkg:golang/example.org/shared@v1.0.0",
		"pkg:golang/example.org/other@v2.0.0", "program:a", "program:b",
	} {
		if times[ref] != 1 {
			t.Errorf("%s is in the bill %d times, want once", ref, times[ref])
		}
	}
	for _, d := range *bom.Dependencies {
		for _, ref := range append(*d.Dependencies, d.Ref) {
			if times[ref] == 0 {
				t.Errorf("%s is depended on and not in the bill", ref)
			}
		}
	}
}

// TestReplacedModule is named as what was compiled.
func TestReplacedModule(t *testing.T) {
	p := made("a", "example.org/old", "v1.0.0")
	p.info.Deps[0].Replace = &debug.Module{Path: "example.org/fork", Version: "v1.1.0"}
	for _, m := range modules([]program{p}) {
		if m.Path == "example.org/old" {
			t.Error("the bill names the module that was replaced")
		}
	}
}
