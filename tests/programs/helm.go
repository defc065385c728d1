package programs

// Helm installs charts.
var Helm = Set{
	Name:        "helm",
	Module:      "tests/chart/helm",
	Packages:    map[string]string{"helm": "helm.sh/helm/v4/cmd/helm"},
	LinkerFlags: "-s -w",
}
