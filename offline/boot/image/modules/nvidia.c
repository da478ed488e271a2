// SPDX-License-Identifier: GPL-2.0
// Modules with the names and the version of NVIDIA's driver for machines without GPUs. They register the character
// devices that the driver registers, so that /proc/devices, /sys/module and the files in /dev look the same. Opening a
// device succeeds, and every other operation fails. With nvswitch=1, /proc/driver contains one NVSwitch.
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
