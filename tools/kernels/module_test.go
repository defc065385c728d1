package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadModules(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"modules.builtin":                      "kernel/net/ipv6/ipv6.ko\nkernel/lib/crc-ccitt.ko\n",
		"modules.order":                        "",
		"kernel/drivers/net/veth.ko":           "",
		"kernel/net/netfilter/nf-tables.ko.xz": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	index, err := readModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ipv6", "crc_ccitt"} {
		if !index.builtin[name] {
			t.Errorf("%s is not known as built in", name)
		}
		if err := index.load(t.Context(), name); err != nil || len(index.order) != 0 {
			t.Errorf("load of built-in %s: %v, %d modules", name, err, len(index.order))
		}
	}
	if len(index.files) != 2 || index.files["veth"] == "" || index.files["nf_tables"] == "" {
		t.Errorf("module files: %v", index.files)
	}
	if err := index.load(t.Context(), "absent"); err == nil {
		t.Error("load of a module that does not exist gave no error")
	}
}

func TestKernelDepends(t *testing.T) {
	output := "linux-image-cloud-amd64\n" +
		"  Depends: linux-base-cloud-amd64\n" +
		"  Depends: linux-image-7.2.13+deb14-cloud-amd64\n" +
		"  Depends: kmod\n" +
		" |Depends: linux-initramfs-tool\n"
	var got []string
	for _, match := range kernelDepends.FindAllStringSubmatch(output, -1) {
		got = append(got, match[1])
	}
	want := []string{"linux-base-cloud-amd64", "linux-image-7.2.13+deb14-cloud-amd64"}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("depends on %v, want %v", got, want)
	}
}
