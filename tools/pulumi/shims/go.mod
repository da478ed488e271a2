module trainyard.invalid/tools/pulumi/shims

go 1.21

require github.com/pulumi/pulumi/sdk/v3 v3.272.0
