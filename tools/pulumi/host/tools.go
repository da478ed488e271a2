//go:build tools

// Package tools names Pulumi's Python language host as a dependency, so that go.mod and go.sum pin it.
package tools

import _ "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
