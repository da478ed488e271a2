//go:build tools

// Package tools names the Pulumi CLI as a dependency, so that go.mod and go.sum pin it.
package tools

import _ "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
