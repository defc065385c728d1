package web

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

// sources are the parts of the page; browsers get them as one file.
//
//go:embed page
var sources embed.FS

// page is the page, and policy what a browser lets it do: run and ask nothing but what came with
// it, and make no markup of text.
var page, policy = assemble("style.css", "dom.js", "charts.js", "services.js", "panels.js", "main.js")

// assemble puts a style sheet and scripts into the page.
func assemble(style string, scripts ...string) (page, policy string) {
	css := "\n" + source(style)
	js := "\n'use strict';\n"
	for _, name := range scripts {
		js += source(name)
	}
	page = strings.NewReplacer("/*style*/", css, "/*script*/", js).Replace(source("index.html"))
	policy = fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
		hash(css), hash(js))
	return page, policy
}

// source returns a part of the page.
func source(name string) string {
	text, err := sources.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// hash names an inline style sheet or script in a Content-Security-Policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func servePage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(page)) // the client has gone when this fails
}
