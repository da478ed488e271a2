// SPDX-License-Identifier: GPL-2.0
// A module with the name and the device of Google's import-helper, whose source is not available. Opening the device
// succeeds, and every other operation fails.
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

static const struct file_operations operations = { .owner = THIS_MODULE };
static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "dmabuf_import_helper",
	.fops = &operations,
};

module_misc_device(device);
MODULE_DESCRIPTION("Fixture for simulated machines");
MODULE_LICENSE("GPL");
MODULE_VERSION("1.1");
