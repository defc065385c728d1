// Package version says which Beeline a binary is.
package version

import "runtime/debug"

const devel = "devel"

// Version is set by the linker (-X) in builds made with make.
var Version = devel

// String returns [Version] or, in a binary that go install made, the version of
// the module. It is never empty.
func String() string {
	info, _ := debug.ReadBuildInfo()
	return name(Version, info)
}

func name(linked string, info *debug.BuildInfo) string {
	if linked != devel || info == nil {
		return linked
	}
	switch info.Main.Version {
	case "", "(devel)":
		return devel
	}
	return info.Main.Version
}
