// SPDX-License-Identifier: GPL-2.0
// Modules with the names and the version of NVIDIA's driver for machines without GPUs. They register the character
// devices that the driver registers, so that /proc/devices, /sys/module and the files in /dev look the same. Opening a
// device succeeds, and every other operation fails. With nvswitch=1, /proc/driver contains one NVSwitch. A number that is
// written to the parameter xid is logged as an Xid of the first GPU, in the format of the driver's messages (examples in
// the package xid of leptonai/gpud, read 2026-11-28).
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/proc_fs.h>

#ifndef VERSION
#define VERSION "580.173.02"
#endif

static const struct file_operations operations = { .owner = THIS_MODULE };
static int major = MAJOR_NUMBER;
static bool nvswitch;
module_param(nvswitch, bool, 0444);

static int log_xid(const char *text, const struct kernel_param *param)
{
	int code, result = kstrtoint(text, 10, &code);

	if (!result)
		pr_err("NVRM: Xid (PCI:0000:01:00): %d, pid='<unknown>', name=<unknown>, logged by a test\n", code);
	return result;
}

static const struct kernel_param_ops xid_operations = { .set = log_xid };
module_param_cb(xid, &xid_operations, NULL, 0200);

static int __init begin(void)
{
	int result = register_chrdev(major, DEVICE_NAME, &operations);

	if (nvswitch && proc_mkdir("driver/nvidia-nvswitch", NULL) && proc_mkdir("driver/nvidia-nvswitch/devices", NULL))
		proc_mkdir("driver/nvidia-nvswitch/devices/0000:05:00.0", NULL);
	if (result > 0)
		major = result;
	return result < 0 ? result : 0;
}

static void __exit end(void)
{
	unregister_chrdev(major, DEVICE_NAME);
	if (nvswitch)
		remove_proc_subtree("driver/nvidia-nvswitch", NULL);
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Fixture for simulated machines");
MODULE_LICENSE("GPL");
MODULE_VERSION(VERSION);
