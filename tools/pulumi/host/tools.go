//go:build tools

// Package tools imports Pulumi's Python language host, so that go.mod and go.sum pin its version.
package tools

import _ "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
