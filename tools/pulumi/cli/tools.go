//go:build tools

// Package tools imports the Pulumi CLI, so that go.mod and go.sum pin its version.
package tools

import _ "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
